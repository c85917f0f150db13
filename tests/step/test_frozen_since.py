"""A layer that is frozen in mid training stands still, and learns again when it is unfrozen."""

from __future__ import annotations

import random
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn

import relaxcomm
from relaxcomm import Rule, trajectory
from relaxcomm.primitives import all_reduce, deltas, gossip, sgd, slow_weights
from relaxcomm.step.agreements import Agreements
from relaxcomm.step.frozen_since import at_rest_alone, clear_frozen, trained_flags
from relaxcomm.step.plan import Task
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from relaxcomm.testing import PretendGpu
from tests.engine.harness import in_process, on_gloo
from tests.models import take_step

NAMES = ("trained", "frozen", "frozen late")


def momentum_on_deltas(**more):
    outer = {"nesterov": {"lr": 0.7, "momentum": 0.9}}
    return {"rules": [{"trigger": {"every": {"steps": 2}}, "payload": "deltas", "outer": outer, **more}]}


ALGORITHMS = {
    "diloco": {"name": "diloco", "steps": 2},
    "slowmo": {"name": "slowmo", "steps": 2, "momentum": 0.8},
    "streaming": {"name": "streaming_diloco", "steps": 4, "fragments": 2, "delay": 1, "merge": 0.0},
    "late": momentum_on_deltas(exchange="all_reduce", delay=1),
    "quantized": momentum_on_deltas(
        exchange="scatter_gather",
        compressor={"quantize": {"bits": 8, "block_size": 64, "rounding": "stochastic"}},
    ),
}


def freezing(world, algorithm, freezes_alone: bool = False):
    """Both layers after each of 20 steps; the first one is frozen from step 5 to 16."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator, seen = torch.Generator().manual_seed(world.rank), []
    with world.attach(model, optimizer, {"algorithm": algorithm}):
        for step in range(20):
            model[0].requires_grad_((freezes_alone and world.rank > 0) or not 5 <= step < 16)
            inputs = torch.randn(8, 6, generator=generator, dtype=torch.float64)
            take_step((model(inputs) - inputs[:, :4]).square().mean(), optimizer)
            seen.append([layer.weight.detach().clone() for layer in (model[0], model[2])])
    return seen


def check(seen):
    first, second = zip(*seen, strict=True)
    assert all(not torch.equal(a, b) for a, b in pairwise(second))
    for step in range(10, 16):  # rounds still bring what came before, late ones too
        assert torch.equal(first[step], first[10]), step
    assert not torch.equal(first[3], first[4])
    assert not torch.equal(first[17], first[15])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_momentum_moves_no_frozen_layer(name):
    for seen in in_process(freezing, 3, ALGORITHMS[name]):
        check(seen)


@pytest.mark.ranks
def test_momentum_moves_no_frozen_layer_on_gloo():
    for seen in on_gloo(freezing, 3, ALGORITHMS["diloco"]):
        check(seen)


def on_gpu(group, gpu):
    with gpu.in_thread():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)).to("cuda")
        optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), []
        with relaxcomm.attach(model, optimizer, {"algorithm": ALGORITHMS["diloco"]}, process_group=group):
            for step in range(20):
                model[0].requires_grad_(not 5 <= step < 16)
                gpu.work.clear()
                model(torch.full((2, 6), 1.0 + group.rank(), device="cuda")).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                assert not gpu.work.waits
                seen.append([layer.weight.detach().clone() for layer in (model[0], model[2])])
    return seen


def test_momentum_moves_no_frozen_layer_on_a_gpu_for_which_the_host_does_not_wait():
    with PretendGpu() as gpu:
        for seen in relaxcomm.simulate(partial(on_gpu, gpu=gpu), 1):
            check(seen)


def test_a_layer_that_one_rank_alone_has_frozen_stays_equal():
    found = [seen[-1] for seen in in_process(freezing, 3, ALGORITHMS["diloco"], True)]
    for first, second in found[1:]:
        assert torch.equal(first, found[0][0])
        assert torch.equal(second, found[0][1])


def test_nothing_rests_where_a_rank_has_no_part_of_a_parameter():
    items = [Item("here", torch.ones(3)), Item("elsewhere", torch.ones(0))]
    rule = Rule(payload=slow_weights(lr=1.0, gamma=1.0), exchange=gossip(), outer=sgd(lr=1.0, momentum=0.5))
    task = Task(0, rule, Bucket(0, items), "rule 0")  # frozen
    ((place, rests),) = at_rest_alone(task, torch.zeros(3), torch.ones(3))
    assert (place, bool(rests)) == (0, True)


@pytest.mark.parametrize(
    ("base", "now", "delta", "rests"),
    [
        (0.0, 0.0, 0.0, True),
        (3.0, 3.0, 1e-6, True),
        (3.0, 3.0, 1e-5, False),
        (3.0, 2.0, 0.0, False),
    ],
)
def test_alone_a_parameter_rests_that_neither_this_rank_nor_others_have_moved(base, now, delta, rests):
    items = [Item(name, torch.full((2,), now)) for name in ("one", "other")]
    rule = Rule(payload=slow_weights(lr=1.0, gamma=1.0), exchange=gossip(), outer=sgd(lr=1.0, momentum=0.5))
    task = Task(0, rule, Bucket(0, items), "rule 0")  # frozen
    found = at_rest_alone(task, torch.tensor([0.0, delta, 0.0, 0.0]), torch.full((4,), base))
    assert [(place, bool(one)) for place, one in found] == [(0, rests), (1, base == now)]


def test_where_ranks_move_one_base_together_none_rests_alone():
    rule = Rule(payload=deltas(), exchange=all_reduce(), outer=sgd(lr=1.0, momentum=0.5))
    task = Task(0, rule, Bucket(0, [Item("frozen", torch.ones(3))]), "rule 0")
    assert not at_rest_alone(task, torch.zeros(3), torch.ones(3))


def momentum_of(payload, exchange, **outer):
    sgd = {"sgd": {"lr": 1.0, **outer}}
    return {"rules": [{"payload": payload, "exchange": exchange, "outer": sgd}]}


@pytest.mark.parametrize(
    ("algorithm", "freezes", "asks"),
    [
        (momentum_of("deltas", "all_reduce", momentum=0.5), True, True),
        (momentum_of("deltas", "all_reduce", momentum=0.5), False, False),
        (momentum_of("deltas", "all_reduce"), True, False),
        (momentum_of({"slow_weights": {"lr": 1.0, "gamma": 1.0}}, "gossip", momentum=0.5), True, False),
        ("local_sgd", True, False),
    ],
)
def test_ranks_ask_each_other_only_what_may_rest_for_all_of_them(monkeypatch, algorithm, freezes, asks):
    asked, ask = [], Agreements.ask_where_it_lies

    def noted(self, name, *arguments):
        asked.append(name)
        return ask(self, name, *arguments)

    monkeypatch.setattr(Agreements, "ask_where_it_lies", noted)
    in_process(frozen_from_the_third_step_on, 3, algorithm, freezes)
    assert ("frozen parameters" in asked) == asks


def frozen_from_the_third_step_on(world, algorithm, freezes):
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with world.attach(model, optimizer, {"algorithm": algorithm}):
        for step in range(4):
            model[0].requires_grad_(not freezes or step < 2)
            model(torch.full((2, 6), 1.0 + world.rank, dtype=torch.float64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def taking_turns(world, algorithm):
    """In bfloat16, with steps that are no more than rounding; the exchange follows a step of the second."""
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)]).bfloat16()
    optimizer = torch.optim.SGD(layers.parameters(), lr=1.0)
    before = [layer.weight.detach().clone() for layer in layers]
    with world.attach(layers, optimizer, {"algorithm": algorithm}):
        for step in range(40):
            for index, layer in enumerate(layers):
                layer.requires_grad_(index == step % 2)
            optimizer.zero_grad()
            (layers[step % 2].weight.sum() * 1e-3).backward()
            optimizer.step()
    return [
        float((first - layer.weight.detach()).float().mean())
        for first, layer in zip(before, layers, strict=True)
    ]


@pytest.mark.parametrize("name", ["diloco", "slowmo", "late", "noloco"])
def test_nothing_is_lost_that_was_moved_before_it_was_frozen(name):
    algorithm = ALGORITHMS.get(name, {"name": name, "steps": 2})
    for first, second in in_process(taking_turns, 3, algorithm):
        assert first > 0.7 * second > 0.01


def of_its_own_choice(world, algorithm, dtype: torch.dtype):
    """Each rank freezes layers as it likes; from step 12 on nobody uses the last, which rank 0 freezes."""
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(4)]).to(dtype)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.02)
    draw, choice, seen = torch.Generator().manual_seed(world.rank), random.Random(world.rank), []
    with world.attach(layers, optimizer, {"algorithm": algorithm}) as engine:
        for step in range(24):
            chosen = choice.randrange(4)
            for index, layer in enumerate(layers):
                layer.requires_grad_((index == chosen) if step < 12 else (index < 3 or world.rank > 0))
            x = torch.randn(4, 6, generator=draw).to(dtype)
            for layer in layers[: 4 if step < 12 else 3]:
                x = layer(x)
            take_step(x.float().square().mean(), optimizer)
            if step % 2:
                seen.append(torch.cat([p.detach().flatten() for p in layers.parameters()]))
        engine.close(average=False)
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["diloco", "slowmo", "quantized"])
def test_ranks_that_freeze_what_they_like_stay_equal(name, dtype):
    first, *others = in_process(of_its_own_choice, 3, ALGORITHMS[name], dtype)
    for seen in others:
        assert all(map(torch.equal, seen, first))
    assert not torch.equal(first[6][-42:], first[7][-42:])  # one who has not frozen it lets momentum go on


def frozen_by_one(group, algorithm):
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)).float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"algorithm": algorithm, "bucket_bytes": 200}
    with relaxcomm.attach(model, optimizer, config, process_group=group):
        for step in range(5):
            model[0].requires_grad_(group.rank() != 2 or step < 2)
            model(torch.full((2, 6), 1.0 + group.rank(), dtype=torch.float32)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "algorithm", [{"name": "topk_sgd", "density": 0.5}, {"name": "ef21", "density": 0.2}]
)
def test_whether_a_rank_trains_a_layer_is_told_whatever_the_default_type(algorithm, dtype):
    torch.set_default_dtype(dtype)
    try:
        first, *others = relaxcomm.simulate(lambda group: frozen_by_one(group, algorithm), 3)
    finally:
        torch.set_default_dtype(torch.float32)
    for other in others:
        assert torch.equal(other, first)


def with_zeros_for_gradients(group, algorithm):
    """How far the first layer is moved in each step, where gradients are set to zero rather than None."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4))
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), []
    config = {"algorithm": algorithm, "bucket_bytes": 200}
    with relaxcomm.attach(model, optimizer, config, process_group=group):
        for step in range(6):
            model[0].requires_grad_(step != 3)
            before = model[0].weight.detach().clone()
            model(torch.full((2, 6), 1.0 + group.rank())).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            seen.append(float((model[0].weight.detach() - before).abs().max()))
    return seen


@pytest.mark.parametrize("algorithm", [{"name": "ef21", "density": 0.2}, "signsgd", "qadam"], ids=str)
def test_what_a_compressor_remembers_moves_no_frozen_layer(algorithm):
    for seen in relaxcomm.simulate(lambda group: with_zeros_for_gradients(group, algorithm), 3):
        assert [moved > 0 for moved in seen] == [True, True, True, False, True, True]


def test_a_gradient_that_came_before_its_parameter_was_frozen_is_applied():
    items = [Item(name, nn.Parameter(torch.ones(2), requires_grad=name == "trained")) for name in NAMES]
    gradients = [torch.zeros(2), torch.zeros(2), torch.tensor([0.0, 3.0])]
    bucket = Bucket(0, items)
    ones = torch.ones(3)
    flags = trained_flags(bucket, gradients, ones)
    assert flags.tolist() == [1, 0, 1]
    assert ones.all()
    results = [torch.ones(2) for _ in items]
    clear_frozen(bucket, results, flags)
    assert [one.tolist() for one in results] == [[1, 1], [0, 0], [1, 1]]


def impulse(steps: int):
    """One move of the only parameter, and then none."""
    rule = Rule(payload=deltas(), exchange=all_reduce(), outer=sgd(lr=1.0, momentum=0.5))
    return trajectory(rule, [[1.0] * 3] + [[0.0] * 3] * steps)[:, 0].tolist()


def test_momentum_moves_on_what_nobody_has_frozen():
    assert impulse(3) == [1.0, 1.5, 1.75, 1.875]


def alternating(world, algorithm, freezes: bool):
    """Two halves that take turns; what has been moved of all that their gradients would."""
    halves = nn.ParameterList([nn.Parameter(torch.zeros(20)) for _ in range(2)])
    optimizer = torch.optim.SGD(halves.parameters(), lr=1.0)
    slope = torch.linspace(0.5, 1.5, 20)
    with world.attach(halves, optimizer, {"algorithm": algorithm}):
        for step in range(100):
            for index, half in enumerate(halves):
                half.requires_grad_(not freezes or index == step % 2)
            optimizer.zero_grad()
            (halves[step % 2] * slope).sum().backward()
            optimizer.step()
    return [float(-half.detach().sum() / (50 * slope.sum())) for half in halves]


TOP_K = {"error_feedback": {"compressor": {"top_k": {"density": 0.2}}}}


def in_parts(compressor=TOP_K, **settings):
    exchange = {"scatter_gather": settings}
    return {"rules": [{"payload": "gradients", "exchange": exchange, "compressor": compressor}]}


WAITING = {
    "topk_sgd": {"name": "topk_sgd", "density": 0.2},
    "gravac": {"name": "gravac"},
    "randomk_sgd": {"name": "randomk_sgd", "density": 0.2},
    "parts": in_parts(),
    "parts and mean": in_parts(server_feedback=True),
    "switch": in_parts({"switch": {"first": "identity", "then": TOP_K, "steps": 1}}, server_feedback=True),
}


@pytest.mark.parametrize("name", ["topk_sgd", "gravac", "randomk_sgd", "parts", "switch"])
def test_residuals_of_frozen_parameters_wait_for_them(name):
    """Half of what was left out of earlier messages was sent while nobody took it."""
    (found, *_), (used, *_) = (
        in_process(alternating, 3, WAITING[name], freezes) for freezes in (True, False)
    )
    for one, other in zip(found, used, strict=True):
        assert one > other - 0.07
        assert one > 0.85


def frozen_for_a_while(world, algorithm, by):
    """How far two tensors of a bucket have come, where ranks have frozen the first from step 2 to 10."""
    pair = nn.ParameterList([nn.Parameter(torch.zeros(20)) for _ in range(2)])
    optimizer = torch.optim.SGD(pair.parameters(), lr=1.0)
    with world.attach(pair, optimizer, {"algorithm": algorithm}):
        for step in range(50):
            pair[0].requires_grad_(world.rank not in by or not 2 <= step < 10)
            optimizer.zero_grad()
            slope = torch.linspace(0.5, 1.5, 20) if step < 12 else torch.zeros(20)
            sum((slope * one).sum() for one in pair).backward()
            optimizer.step()
    return [-float(one.detach().sum() / 20) for one in pair]


@pytest.mark.parametrize("by", [(1,), (0, 1), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("name", ["topk_sgd", "parts and mean"])
def test_nothing_is_lost_of_what_ranks_freeze_for_a_while(name, by):
    for first, second in in_process(frozen_for_a_while, 3, WAITING[name], by):
        assert first == pytest.approx(12 - 8 * len(by) / 3)
        assert second == pytest.approx(12)


def with_a_rest_of_the_mean(world, freezes: bool):
    """What a tensor has come to of 12, and how far it was moved while nobody used it, from step 2 to 10.

    Each rank has a third of the entries, which its messages hold; those of their mean leave some out.
    """
    pair = nn.ParameterList([nn.Parameter(torch.zeros(18)) for _ in range(2)])
    optimizer, moved = torch.optim.SGD(pair.parameters(), lr=1.0), []
    slope = torch.where(torch.arange(18) % 3 == world.rank, 3.0, 0.0)
    mean_alone = in_parts({"top_k": {"density": 0.4}}, server_feedback=True)
    with world.attach(pair, optimizer, {"algorithm": mean_alone}):
        for step in range(30):
            is_used = not 2 <= step < 10
            pair[0].requires_grad_(is_used or not freezes)
            optimizer.zero_grad()
            begun = -float(pair[0].detach().mean())
            sum((slope * (step < 12) * one).sum() for one in pair[0 if is_used else 1 :]).backward()
            optimizer.step()
            if not is_used:
                moved.append(-float(pair[0].detach().mean()) - begun)
    return -float(pair[0].detach().mean()), moved


@pytest.mark.filterwarnings("ignore:top_k.* loses a part:relaxcomm.CompositionWarning")
@pytest.mark.parametrize("freezes", [True, False])
def test_the_rest_of_a_mean_waits_for_a_frozen_layer_and_moves_an_unused_one(freezes):
    for end, moved in in_process(with_a_rest_of_the_mean, 3, freezes):
        assert end == pytest.approx(4)
        assert (moved[0] > 0.1) != freezes


def rounded_means(world, compressor):
    model = nn.Linear(9, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with world.attach(model, optimizer, {"algorithm": in_parts(compressor, server_feedback=True)}):
        before = model.weight.detach().clone()
        (model(torch.ones(1, 9)).sum() * (1 + world.rank)).backward()
        optimizer.step()
    return (before - model.weight.detach()).flatten().tolist()


@pytest.mark.parametrize("compressor", ["identity", {"cast": {"dtype": "float16"}}], ids=str)
def test_the_rest_of_a_mean_is_kept_where_each_entry_is_coded_alone(compressor):
    for moved in in_process(rounded_means, 3, compressor):
        assert moved == pytest.approx([2.0] * 36)
