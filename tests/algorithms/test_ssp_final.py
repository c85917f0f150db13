"""SSP ends with the server's model, in which all pushes are, whoever is slow or ends early."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from tests.engine.harness import World, in_process, on_gloo, values
from tests.models import CASES, take_step, trainable

STALENESS = [0, 3, 16, math.inf]
SECONDS = 1.0, 1.3, 5.0
EVEN, UNEVEN = (20, 20, 20), (24, 9, 16)


class Moves:
    """What a worker's optimizer has moved in all, before anything is exchanged."""

    def __init__(self, model, optimizer):
        self.total, self._model = np.zeros_like(values(model)), model
        optimizer.register_step_pre_hook(self._begins)  # before attach, so ahead of the engine's
        optimizer.register_step_post_hook(self._ended)

    def _begins(self, *_):
        self._before = values(self._model)

    def _ended(self, *_):
        self.total = self.total + values(self._model) - self._before


def rule(staleness, steps):
    """Staleness alone is ssp; workers that push every few steps have something left to push at the end."""
    if steps == 1:
        return {"name": "ssp", "staleness": staleness}
    exchange = {"server": {"staleness": staleness}}
    return {"rules": [{"trigger": {"every": {"steps": steps}}, "payload": "deltas", "exchange": exchange}]}


def pushing(world: World, algorithm, steps, looks=()):
    """Train; the start, this worker's moves, the model and what `averaged()` showed after some steps."""
    model, optimizer = trainable("toy", "momentum")
    start, moves, seen = values(model), Moves(model, optimizer), []
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        for step in range(steps[world.rank]):
            if world.group is None:
                time.sleep(0.001 * SECONDS[world.rank])
            else:
                world.group.sleep(SECONDS[world.rank])
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
            if step in looks:
                seen.append(_look(engine, model, moves))
    return start, moves.total, values(model), seen


def _look(engine, model, moves):
    before = values(model)
    with engine.averaged():
        inside = values(model)
    np.testing.assert_array_equal(values(model), before)
    return moves.total.copy(), inside


def assert_final(found, which):
    """All ranks hold the start and the mean of all moves."""
    starts, moves, finals = (np.stack(rows) for rows in zip(*(which(one) for one in found), strict=True))
    assert (finals == finals[0]).all()
    np.testing.assert_allclose(finals[0], starts[0] + moves.mean(axis=0), rtol=1e-12, atol=1e-12)


@pytest.mark.every_other("period", "staleness", "steps")
@pytest.mark.parametrize("steps", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("staleness", STALENESS)
@pytest.mark.parametrize("period", [1, 3])
def test_close_ends_with_all_that_was_pushed(staleness, steps, period):
    found = in_process(pushing, 3, rule(staleness, period), steps)
    assert_final(found, lambda one: one[:3])


@pytest.mark.every_other("staleness", "period")
@pytest.mark.parametrize("staleness", STALENESS)
@pytest.mark.parametrize("period", [1, 3])
def test_averaged_shows_what_the_server_holds_and_changes_nothing(staleness, period):
    found = in_process(pushing, 3, rule(staleness, period), EVEN, (6, 7, 13))
    for index in range(3):
        assert_final(found, lambda one, index=index: (one[0], *one[3][index]))
    assert_final(found, lambda one: one[:3])
    if staleness == 0:  # else who looks waits for the others, and reads more of them afterwards
        for one, other in zip(found, in_process(pushing, 3, rule(staleness, period), EVEN), strict=True):
            np.testing.assert_array_equal(one[2], other[2])


@pytest.mark.ranks
@pytest.mark.parametrize("staleness", [0, 3])
def test_on_gloo(staleness):
    found = on_gloo(pushing, 3, rule(staleness, 1), EVEN, (6,))
    assert_final(found, lambda one: (one[0], *one[3][0]))
    assert_final(found, lambda one: one[:3])


def switching(world: World, staleness):
    model, optimizer = trainable("toy", "momentum")
    start, moves = values(model), Moves(model, optimizer)
    with world.attach(model, optimizer, {"algorithm": rule(staleness, 1)}) as engine:
        for step in range(9):
            world.group.sleep(SECONDS[world.rank])
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
        engine.switch("bsp")
        return start, moves.total, values(model)


@pytest.mark.parametrize("staleness", STALENESS)
def test_another_algorithm_goes_on_with_all_that_was_pushed(staleness):
    assert_final(in_process(switching, 3, staleness), lambda one: one)


def resuming(world: World, algorithm, stop):
    """A run that is saved after `stop` steps of each rank and goes on in another engine."""
    model, optimizer = trainable("toy", "momentum")
    start, moves, saved = values(model), Moves(model, optimizer), None
    for begin, end in ((0, stop[world.rank]), (stop[world.rank], UNEVEN[world.rank])):
        engine = world.attach(model, optimizer, {"algorithm": algorithm})
        if saved is not None:
            model.load_state_dict(saved[0])
            engine.load_state_dict(saved[1])
        for step in range(begin, end):
            world.group.sleep(SECONDS[world.rank])
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
        if saved is None:
            saved = {name: value.clone() for name, value in model.state_dict().items()}, engine.state_dict()
            engine.close(average=False)
        else:
            engine.close()
    return start, moves.total, values(model)


@pytest.mark.parametrize("stop", [(7, 7, 7), (9, 3, 5)], ids=["even", "uneven"])
@pytest.mark.parametrize("algorithm", [rule(3, 1), rule(math.inf, 1), rule(3, 2)])
def test_a_resumed_run_loses_nothing_and_counts_nothing_twice(algorithm, stop):
    """What a worker reads when depends on the others' speed, but not what comes of all in the end."""
    assert_final(in_process(resuming, 3, algorithm, stop), lambda one: one)


def epochs(world: World, staleness):
    """Each worker's epochs have another length, and all meet after each, to evaluate and to save."""
    model, optimizer = trainable("toy", "momentum")
    start, moves, seen = values(model), Moves(model, optimizer), []
    with world.attach(model, optimizer, {"algorithm": rule(staleness, 1)}) as engine:
        for epoch in range(3):
            for step in range((2, 5, 14)[(world.rank + epoch) % 3]):
                take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
            seen.append(_look(engine, model, moves))
            engine.state_dict()
    return start, moves.total, values(model), seen


@pytest.mark.parametrize("network", [in_process, pytest.param(on_gloo, marks=pytest.mark.ranks)])
def test_who_waits_in_averaged_holds_up_nobody(network):
    """A worker whose epoch is short is excused until all have met, or the others could not end theirs."""
    found = network(epochs, 3, 1)
    for index in range(3):
        assert_final(found, lambda one, index=index: (one[0], *one[3][index]))
    assert_final(found, lambda one: one[:3])


def bounded(world: World, staleness):
    """After all have met the bound holds again: when this worker's steps ended, in its own time."""
    model, optimizer = trainable("toy", "plain")
    ended = []
    with world.attach(model, optimizer, {"algorithm": rule(staleness, 1)}) as engine:
        for step in range(10):
            world.group.sleep(5.0 if world.rank == 0 else 1.0)
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
            ended.append(world.group.time())
            if step == 4:
                with engine.averaged():
                    pass
    return ended


def test_the_bound_holds_after_all_have_met():
    slow, *fast = in_process(bounded, 3, 2)
    assert slow == [5.0 * (step + 1) for step in range(10)]
    for ended in fast:
        assert ended[5:8] == [26.0, 27.0, 30.0]  # met at 25 s; the slow one's sixth step ends at 30 s
