"""The drift guard finds replicas that should be equal and are not, on every rank, naming the tensor."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

import relaxcomm.config
from tests.engine.harness import in_process, on_gloo, values
from tests.models import CASES, make_optimizer, take_step, trainable


def perturbed(world, algorithm, policy, at=7, steps=16, every=4):
    """Rank 1's parameters change by themselves in step `at`; in which step it was noticed."""
    model, optimizer = trainable("toy", "plain")
    config = {"algorithm": algorithm, "drift_guard": {"every_steps": every, "policy": policy}}
    noticed = None
    with world.attach(model, optimizer, config) as engine:
        for step in range(steps):
            CASES["toy"].local_loss(model, step, world.rank).backward()
            if step == at and world.rank == 1:
                with torch.no_grad():
                    model[2].weight[3, 3] += 1e-12
            try:
                optimizer.step()
            except relaxcomm.DriftError as error:
                noticed = (step, str(error))
                engine.close(average=False)
                break
            optimizer.zero_grad()
    return noticed, values(model)


@pytest.mark.parametrize("name", ["bsp", "topk_sgd"])
def test_it_is_an_error_on_every_rank_that_names_the_tensor(name):
    for noticed, _ in in_process(perturbed, 3, name, "error"):
        assert noticed is not None
        step, text = noticed
        assert step == 7
        assert "2.weight" in text
        assert "0.weight" not in text


def doubled(world):
    """All of a large weight is twice as large on rank 1, which a power of two changes alike everywhere."""
    layer = torch.nn.Linear(256, 256, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    with world.attach(layer, optimizer, {"algorithm": "bsp", "drift_guard": {"every_steps": 1}}) as engine:
        if world.rank == 1:
            with torch.no_grad():
                layer.weight *= 2
        layer(torch.ones(1, 256)).sum().backward()
        with pytest.raises(relaxcomm.DriftError, match="weight"):
            optimizer.step()
        engine.close(average=False)


def test_it_sees_a_weight_that_was_doubled():
    in_process(doubled, 3)


@pytest.mark.parametrize("name", ["bsp", "topk_sgd", {"name": "local_sgd", "steps": 3}, "selsync"])
def test_equal_replicas_are_left_alone(name):
    assert [noticed for noticed, _ in in_process(perturbed, 3, name, "error", 99)] == [None] * 3


def test_local_sgd_is_compared_after_its_averages():
    """A change between averages is averaged away, so it is no drift; a change of the average itself is."""
    found = in_process(perturbed, 3, {"name": "local_sgd", "steps": 3}, "error")
    assert [noticed for noticed, _ in found] == [None] * 3


DIVIDED = {
    "rules": [
        {"payload": "gradients", "exchange": "all_reduce", "select": "2.*"},
        {"trigger": {"every": {"steps": 3}}, "payload": "parameters", "exchange": "all_reduce"}
        | {"select": ["0.*", "4.*"]},
    ]
}
FRAGMENTS = {"name": "local_sgd", "steps": 4, "fragments": 2}


def test_rules_that_divide_the_model_are_compared_each_where_it_leaves_equal_replicas():
    """Of what local steps have, a change is averaged away; gradients leave theirs as it is."""
    for noticed, _ in in_process(perturbed, 3, DIVIDED, "error"):
        assert noticed is not None
        assert noticed[0] == 7
        assert "2.weight" in noticed[1]
    assert [noticed for noticed, _ in in_process(perturbed, 3, DIVIDED, "error", 99)] == [None] * 3


def compared(world, algorithm):
    """In which steps each parameter was compared."""
    found, model = {}, CASES["toy"].model()
    optimizer = make_optimizer("plain", model)
    config = {"algorithm": algorithm, "drift_guard": {"every_steps": 4}}
    with world.attach(model, optimizer, config) as engine:
        drift = engine._session.step._drift
        inner = drift._due

        def look(equal):
            items = inner(equal)
            for item in items:
                found.setdefault(item.name, []).append(engine.step)
            return items

        drift._due = look
        for step in range(16):
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
    return found


@pytest.mark.parametrize("algorithm", [DIVIDED, FRAGMENTS], ids=["rules", "fragments"])
def test_each_parameter_is_compared_now_and_then(algorithm):
    first, *others = in_process(compared, 3, algorithm)
    assert all(other == first for other in others)
    assert len(first) == len(list(CASES["toy"].model().parameters()))
    for steps in first.values():
        assert len(steps) >= 2
        assert all(after - before >= 4 for before, after in pairwise(steps))


def warned(world, policy):
    with pytest.warns(relaxcomm.DriftWarning, match="2.weight"):
        return perturbed(world, "bsp", policy)[1]


@pytest.mark.ranks
@pytest.mark.parametrize("policy", ["warn", "average"])
def test_policies(policy):
    first, *others = on_gloo(warned, 3, policy)
    if policy == "average":
        for other in others:
            np.testing.assert_array_equal(other, first)


def averaged_away(world, algorithm):
    """Parameters that one rank has changed, some steps after an average, where optimizers have momentum."""
    model, optimizer = trainable("toy", "momentum")
    config = {"algorithm": algorithm, "drift_guard": {"every_steps": 4, "policy": "average"}}
    with world.attach(model, optimizer, config) as engine:
        for step in range(10):
            CASES["toy"].local_loss(model, step, world.rank).backward()
            if step == 5 and world.rank == 1:
                with torch.no_grad():
                    model[2].weight += 0.1
            optimizer.step()
            optimizer.zero_grad()
        engine.close(average=False)
    return model[2].weight.detach().numpy()


@pytest.mark.filterwarnings("ignore::relaxcomm.DriftWarning")
@pytest.mark.parametrize("algorithm", ["bsp", DIVIDED], ids=["bsp", "rules"])
def test_an_average_ends_a_drift_of_momentum(algorithm):
    """Momenta have grown apart by weight decay, and would part the replicas once more."""
    first, *others = in_process(averaged_away, 3, algorithm)
    for other in others:
        np.testing.assert_array_equal(other, first)


def joined(world, algorithm, at):
    """Ranks with 4, 8 and 9 batches; rank 1's parameters change by themselves before its batch `at`."""
    model, optimizer = trainable("toy", "plain")
    config = {"algorithm": algorithm, "drift_guard": {"every_steps": 2}}
    noticed = None
    with world.attach(model, optimizer, config) as engine:
        try:
            for epoch in range(2):
                with engine.join():
                    for step in range((4, 8, 9)[world.rank]):
                        if (epoch, step, world.rank) == (0, at, 1):
                            with torch.no_grad():
                                model[2].weight[3, 3] += 1e-12
                        take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
        except relaxcomm.DriftError as error:
            noticed = engine.step, "2.weight" in str(error)
            engine.close(average=False)
    return noticed, values(model)


@pytest.mark.parametrize("algorithm", ["bsp", {"name": "local_sgd", "steps": 2}], ids=["bsp", "local_sgd"])
def test_ranks_that_have_run_out_of_data_are_not_compared(network, algorithm):
    """Their parameters are those of their last batch."""
    results = network(joined, 3, algorithm, 99)
    for noticed, end in results:
        assert noticed is None
        np.testing.assert_array_equal(end, results[0][1])


def test_a_drift_is_found_inside_join_as_long_as_all_train():
    assert [noticed for noticed, _ in in_process(joined, 3, "bsp", 2)] == [(3, True)] * 3
    # What it is after the last comparison, all take over, or nobody does.
    assert [noticed for noticed, _ in in_process(joined, 3, "bsp", 6)] == [None] * 3


@pytest.mark.parametrize("bad", [{"every_steps": 0}, {"policy": "ignore"}, {"every": 3}, 5])
def test_bad_settings_are_refused(bad):
    with pytest.raises(relaxcomm.ConfigError):
        relaxcomm.config.load({"algorithm": "bsp", "drift_guard": bad})


def looked_up(world):
    """Each rank looks up a row of its own, which forward brings to the bound."""
    table = torch.nn.Embedding(8, 4, max_norm=0.5)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    config = {"algorithm": "bsp", "drift_guard": {"every_steps": 4, "policy": "error"}}
    with world.attach(table, optimizer, config):
        for _ in range(4):
            take_step(table(torch.tensor([world.rank])).sum(), optimizer)


def test_an_embedding_that_bounds_its_rows_parts_replicas():
    with pytest.raises(Exception, match="different values of weight"):
        in_process(looked_up, 2)
