"""averaged() shows the mean for a while; close() drains, averages and gives everything back."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch

from relaxcomm import from_networkx
from tests.engine.harness import World, in_process, values
from tests.models import CASES, take_step, trainable

LOCAL = {"name": "local_sgd", "steps": 4}


def step(case, model, optimizer, index: int, rank: int) -> None:
    take_step(case.local_loss(model, index, rank), optimizer)


def floats(model):
    return [b.clone() for b in model.buffers() if b.is_floating_point()]


def integers(model):
    return [b.clone() for b in model.buffers() if not b.is_floating_point()]


def look_between(world: World, algorithm, look: bool):
    """Three local steps, a look at the average, three more; the last two parts must not depend on it."""
    case = CASES["convnet"]
    model, optimizer = trainable("convnet", "momentum", seed=world.rank)
    inside = None
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        for index in range(3):
            step(case, model, optimizer, index, world.rank)
        before = values(model), floats(model), integers(model)
        if look:
            with engine.averaged():
                model.eval()
                with torch.no_grad():
                    output = model(case.data(0, 0)[0])
                inside = values(model), floats(model), integers(model), output
            model.train()
        after = values(model), floats(model), integers(model)
        for index in range(3, 6):
            step(case, model, optimizer, index, world.rank)
        counted = engine.statistics["steps"]
        end = values(model)
    return before, inside, after, end, counted


@pytest.mark.parametrize(
    "algorithm", [LOCAL, {"name": "diloco", "steps": 4}, "bsp"], ids=["local_sgd", "diloco", "bsp"]
)
def test_averaged_shows_the_mean_and_restores_bit_for_bit(network, algorithm):
    results = network(look_between, 3, algorithm, True)
    undisturbed = network(look_between, 3, algorithm, False)
    mean = np.mean([before[0] for before, *_ in results], axis=0)
    for rank, (before, inside, after, end, counted) in enumerate(results):
        np.testing.assert_allclose(inside[0], mean, rtol=1e-6, atol=1e-7)
        np.testing.assert_array_equal(inside[0], results[0][1][0])
        torch.testing.assert_close(inside[3], results[0][1][3], rtol=0, atol=0)
        for place, buffer in enumerate(inside[1]):
            wanted = torch.stack([other[0][1][place] for other in results]).mean(0)
            torch.testing.assert_close(buffer, wanted, rtol=1e-6, atol=1e-7)
            assert not torch.equal(buffer, before[1][place])
        for found, wanted in ((after[1], before[1]), (after[2], before[2]), (inside[2], before[2])):
            for one, other in zip(found, wanted, strict=True):
                assert torch.equal(one, other)
        np.testing.assert_array_equal(after[0], before[0])
        np.testing.assert_array_equal(end, undisturbed[rank][3])
        assert counted == 6


def raise_inside(world: World):
    case = CASES["toy"]
    model, optimizer = trainable("toy", "momentum", seed=0)
    with world.attach(model, optimizer, {"algorithm": LOCAL}) as engine:
        step(case, model, optimizer, 0, world.rank)
        before = values(model)
        try:
            with engine.averaged():
                raise KeyError("evaluation failed")
        except KeyError:
            restored = np.array_equal(values(model), before)
        for index in range(1, 6):
            step(case, model, optimizer, index, world.rank)
        return restored


def test_averaged_restores_after_an_exception(network):
    assert network(raise_inside, 3) == [True] * 3


def close_in_the_middle(world: World, average: bool):
    case = CASES["convnet"]
    model, optimizer = trainable("convnet", "momentum", seed=0)
    engine = world.attach(model, optimizer, {"algorithm": LOCAL})
    for index in range(6):
        step(case, model, optimizer, index, world.rank)
    before = values(model), floats(model), integers(model)
    engine.close(average=average)
    after = values(model), floats(model), integers(model)
    engine.close()  # a second time is nothing
    step(case, model, optimizer, 6, world.rank)
    return before, after, values(model)


@pytest.mark.parametrize("average", [True, False])
def test_close_averages_parameters_and_float_buffers_when_asked(network, average):
    results = network(close_in_the_middle, 3, average)
    for part in (0, 1):
        befores = [np.concatenate([np.ravel(x) for x in before[part]]) for before, _, _ in results]
        afters = [np.concatenate([np.ravel(x) for x in after[part]]) for _, after, _ in results]
        assert np.abs(befores[0] - befores[1]).max() > 1e-4
        for rank, found in enumerate(afters):
            if average:
                np.testing.assert_allclose(found, np.mean(befores, axis=0), rtol=1e-5, atol=1e-7)
                np.testing.assert_array_equal(found, afters[0])
            else:
                np.testing.assert_array_equal(found, befores[rank])
    for before, after, _ in results:
        assert all(torch.equal(one, other) for one, other in zip(before[2], after[2], strict=True))
    ends = [end for _, _, end in results]
    assert not np.array_equal(ends[0], ends[1])  # training goes on alone


def buffers_at_exchanges(world: World, algorithm):
    case = CASES["convnet"]
    model, optimizer = trainable("convnet", "plain", seed=world.rank)
    history = []
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        for index in range(4):
            step(case, model, optimizer, index, world.rank)
            history.append(torch.cat(floats(model)))
        engine.close(average=False)
    return history, [int(b) for b in integers(model)]


def test_float_buffers_follow_parameter_averages_and_stay_local_under_gradients(network):
    local, averaged = (
        network(buffers_at_exchanges, 3, "bsp"),
        network(buffers_at_exchanges, 3, {"name": "local_sgd", "steps": 2}),
    )
    for index in range(4):
        assert not torch.equal(local[0][0][index], local[1][0][index])
        same = torch.equal(averaged[0][0][index], averaged[1][0][index])
        assert same == (index % 2 == 1)
    assert [counts for _, counts in local + averaged] == [[4, 4]] * 6


UNBALANCED = from_networkx(nx.DiGraph([(1, 0), (2, 0), (3, 0), (0, 1), (1, 2), (2, 3)]))


def pushed(world: World):
    """Each rank moves by its number in the first step; the sum of all is pushed on from then on."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3, bias=False), torch.nn.Linear(3, 1, bias=False))
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    seen = []
    config = {"algorithm": "sgp", "topology": UNBALANCED, "bucket_bytes": 12}
    with world.attach(model, optimizer, config) as engine:
        for step in range(3):
            loss = sum(parameter.sum() for parameter in model.parameters())
            take_step(-world.rank * loss if step == 0 else 0 * loss, optimizer)
            own = values(model)
            with engine.averaged():
                seen.append(values(model))
    return own, seen, values(model)


def test_push_sum_averages_what_is_handed_out_and_not_its_quotients():
    ranks = in_process(pushed, 4)
    quotients = np.mean([own for own, _, _ in ranks], axis=0)
    assert abs(quotients[0] - 1.5) > 0.01
    for _, seen, end in ranks:
        for mean in (*seen, end):
            np.testing.assert_allclose(mean, 1.5, atol=1e-5)


def kept_equal(world: World, moved: float):
    """What is kept, shown and sent where an algorithm keeps replicas equal, and one may have moved."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.BatchNorm1d(40))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(world.rank)
    with world.attach(model, optimizer, {"algorithm": "bsp", "bucket_bytes": 4000}) as engine:
        model(torch.randn(4, 40, generator=draw)).square().mean().backward()
        optimizer.step()
        if world.rank == 1:
            model[0].bias.data += moved
        own = values(model), floats(model)
        with engine.averaged():
            shown = values(model), floats(model)
        sent = engine.statistics["evaluation_bytes_sent"]
    return own, shown, values(model), sent


def test_replicas_that_are_equal_are_their_own_mean_and_not_sent():
    """Three times a float32, divided by three, is another number in one entry of seven."""
    found = in_process(kept_equal, 3, 0.0)
    for (own, buffers), (shown, means), closed, sent in found:
        np.testing.assert_array_equal(shown, own)
        np.testing.assert_array_equal(closed, own)
        assert any(not torch.equal(one, mean) for one, mean in zip(buffers, means, strict=True))
        assert sent < own.size  # of four bytes each


def test_a_parameter_that_has_drifted_is_averaged():
    found = in_process(kept_equal, 3, 3.0)
    mean = np.mean([own for (own, _), *_ in found], axis=0)
    for _, (shown, _), closed, _ in found:
        np.testing.assert_allclose(shown, mean, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(closed, shown)
