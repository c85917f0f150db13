"""SSP: its limits, its bound under a slow worker, and what becomes of it when workers end or fail."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch

import relaxcomm.config
from relaxcomm import Link, primitives
from tests import references
from tests.engine.harness import (
    World,
    assert_histories_agree,
    in_process,
    on_gloo,
    saved_and_loaded,
    simulated_workers,
    train,
    values,
)
from tests.models import CASES, take_step, trainable

STEPS = 30


def settings(staleness, **more):
    return {"algorithm": {"name": "ssp", "staleness": staleness, **more}}


@pytest.mark.parametrize("optimizer", ["plain", "momentum"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_staleness_0_is_bsp(optimizer, size):
    expected = references.bsp(simulated_workers(size, optimizer), STEPS)
    assert_histories_agree(in_process(train, size, settings(0), STEPS, optimizer), expected)


def paced(world, staleness, steps, slow=5.0):
    """Rank 0 computes `slow` seconds a step, the others 1 s; when each step ended, and its clock's view."""
    model, optimizer = trainable("toy", "plain")
    ended = []
    with world.attach(model, optimizer, settings(staleness)) as engine:
        for step in range(steps):
            world.group.sleep(slow if world.rank == 0 else 1.0)
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
            ended.append(world.group.time())
    return ended, engine.statistics["staleness_steps"], values(model)


@pytest.mark.parametrize("staleness", [0, 1, 3, 7, math.inf])
def test_a_slow_worker_holds_up_the_others_by_the_bound_alone(staleness):
    """A worker may end its step c once the slow one has ended its step c - staleness."""
    found = in_process(paced, 3, staleness, 20)
    slow = found[0][0]
    assert slow == [5.0 * (step + 1) for step in range(20)]
    for ended, seen, _ in found[1:]:
        expected, now = [], 0.0
        for step in range(20):
            now += 1.0
            bound = step - staleness
            now = max(now, slow[int(bound)]) if bound >= 0 else now
            expected.append(now)
        assert ended == expected
        assert seen <= staleness
        assert seen == min(staleness, 16)  # reached, unless the run ends before
    first = found[0][2]
    for _, _, parameters in found:
        np.testing.assert_allclose(parameters, first, rtol=1e-12)


def drifting(world, staleness, steps):
    """Every worker moves its one parameter by a known amount; what it reads shows which pushes it has."""
    model = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    reads = []
    with world.attach(model, optimizer, settings(staleness)) as engine:
        assert engine.algorithm.name == "ssp"
        for _ in range(steps):
            world.group.sleep((1.0, 1.7, 4.0)[world.rank])
            model(torch.ones(1, 1).double()).sum().backward()
            optimizer.zero_grad()
            model.weight.grad = torch.full((1, 1), -float(1000**world.rank)).double()
            optimizer.step()
            reads.append(round(model.weight.item() * world.size))
    return reads


@pytest.mark.parametrize("staleness", [0, 2, 5])
def test_reads_hold_what_they_must(staleness):
    """After its push number c, a worker reads all of its own and at least c - staleness of the others'."""
    for rank, reads in enumerate(in_process(drifting, 3, staleness, 12)):
        for step, read in enumerate(reads):
            counts = [read % 1000, read // 1000 % 1000, read // 1000000]
            assert counts[rank] == step + 1
            assert min(counts) >= step + 1 - staleness
            assert max(counts) <= 12


def test_time_of_a_push_and_a_pull_is_counted():
    def rank(group):
        world = World(group.rank(), 3, group)
        return paced(world, 0, 2, slow=1.0)[0]

    for first, second in relaxcomm.simulate(rank, 3, link=Link(latency_seconds=0.5)):
        assert second - first == 1.0 + 2 * 0.5


def counted(world, steps):
    model, optimizer = trainable("toy", "plain")
    with world.attach(model, optimizer, {**settings(2), "bucket_bytes": 1 << 20}) as engine:
        for step in range(steps):
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
        engine.close(average=False)
    return engine.statistics["bytes_sent"]


def test_bytes_are_those_of_pushes_and_answers():
    """225 float64 parameters on 3 ranks: shards of 75, and 16 bytes with each message."""
    sent = np.subtract(in_process(counted, 3, 10), in_process(counted, 3, 0))
    assert sum(sent) == 10 * 3 * 2 * (2 * (75 * 8 + 16))


@pytest.mark.ranks
@pytest.mark.parametrize("staleness", [2, math.inf])
def test_ranks_may_end_at_different_times(staleness):
    results = on_gloo(uneven, 3, staleness)
    assert [steps for steps, _ in results] == [5, 9, 13]
    for _, parameters in results:
        np.testing.assert_array_equal(parameters, results[0][1])


def uneven(world, staleness):
    model, optimizer = trainable("mlp", "momentum")
    with world.attach(model, optimizer, settings(staleness)) as engine, engine.join():
        for step in range(5 + 4 * world.rank):
            if world.rank == 2:
                time.sleep(0.02)
            take_step(CASES["mlp"].local_loss(model, step, world.rank), optimizer)
    return engine.statistics["steps"], values(model)


def not_finite(world):
    model, optimizer = trainable("toy", "plain")
    with world.attach(model, optimizer, settings(1)):
        for step in range(9):
            loss = CASES["toy"].local_loss(model, step, world.rank)
            take_step(loss * (float("nan") if world.rank == 1 and step == 4 else 1.0), optimizer)


@pytest.mark.ranks
def test_a_nan_stops_everyone_and_reaches_no_server():
    with pytest.raises(Exception, match="NaN or infinity") as caught:
        on_gloo(not_finite, 3)
    kinds = {rank: kind for rank, (kind, _) in caught.value.errors.items()}
    assert kinds == {0: "RankLostError", 1: "NonFiniteError", 2: "RankLostError"}


@pytest.mark.ranks
def test_a_resumed_run_goes_on():
    expected = references.bsp(simulated_workers(3), 16)[:16]
    assert_histories_agree(on_gloo(saved_and_loaded, 3, settings(0), 16, 7), expected)


@pytest.mark.parametrize(
    "rule",
    [
        {"payload": "parameters", "exchange": {"server": {"staleness": 1}}},
        {"payload": "deltas", "exchange": {"server": {"staleness": 1}}, "outer": {"sgd": {"lr": 0.5}}},
        {"payload": "deltas", "exchange": {"server": {"staleness": 1}}, "delay": 1},
        {
            "payload": "deltas",
            "exchange": {"server": {"staleness": 1}},
            "trigger": {"relative_gradient_change": {"threshold": 0.1}},
        },
    ],
)
def test_compositions_that_cannot_work_are_refused(rule):
    with pytest.raises(relaxcomm.CompositionError):
        relaxcomm.config.load({"algorithm": {"rules": [rule]}})


def test_a_collective_rule_beside_it_is_refused():
    alone = {"payload": "deltas", "exchange": {"server": {"staleness": 1}}}
    together = {"payload": "gradients", "exchange": "all_reduce"}
    with pytest.raises(relaxcomm.CompositionError, match="go on alone"):
        relaxcomm.config.load({"algorithm": {"rules": [alone, together]}})


@pytest.mark.parametrize("staleness", [-1, float("nan"), "many"])
def test_a_bad_staleness_is_refused(staleness):
    with pytest.raises(relaxcomm.ConfigError):
        primitives.server(staleness=staleness)
