"""All ranks come together where a server holds the model, however far apart they are."""

from __future__ import annotations

import copy

import pytest

from relaxcomm import checkpoint
from tests.engine.harness import World, in_process, on_gloo, values
from tests.models import CASES, take_step, trainable

STEPS = 5, 2, 0  # further apart than the staleness
TOGETHER = {
    "switch": lambda engine, saved, folder: engine.switch("bsp"),
    "load": lambda engine, saved, folder: engine.load_run_state_dict(saved),
    "load state": lambda engine, saved, folder: engine.load_state_dict(
        {f"rank_{engine.world.rank}": (saved["engine"],)}
    ),
    "checkpoint": lambda engine, saved, folder: checkpoint.load(engine, folder),
    "together": lambda engine, saved, folder: engine.together(
        lambda: engine.world.gather(engine.step, "steps")
    ),
}


def apart(world: World, what, folder):
    """Ranks train, each as long as it likes, and then do something together, twice; what they end with."""
    model, optimizer = trainable("toy", "plain")

    def train(steps):
        for step in range(steps):
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)

    with world.attach(model, optimizer, {"algorithm": {"name": "ssp", "staleness": 1}}) as engine:
        train(1)
        checkpoint.save(engine, folder)
        saved = copy.deepcopy(engine.run_state_dict())
        train(STEPS[world.rank])
        TOGETHER[what](engine, saved, folder)
        if what == "switch":
            return engine.algorithm.name
        train(STEPS[world.rank])
        found = TOGETHER[what](engine, saved, folder)
        if what == "together":
            engine.finish()
            assert TOGETHER[what](engine, saved, folder) == found, "when nobody serves any more"
    return found if what == "together" else values(model).tolist()


@pytest.mark.parametrize("what", TOGETHER)
def test_no_rank_waits_for_a_push_of_one_that_waits_for_all(what, tmp_path):
    first, *others = in_process(apart, 3, what, tmp_path)
    assert others == [first, first]
    if what == "together":
        assert first == [1 + 2 * steps for steps in STEPS]


@pytest.mark.ranks
@pytest.mark.parametrize("what", ["switch", "together"])
def test_so_it_is_between_processes(what, tmp_path):
    first, *others = on_gloo(apart, 3, what, tmp_path)
    assert others == [first, first]


def counted(world: World, comes):
    """Bytes of training, where ranks come together after every step or never."""
    model, optimizer = trainable("toy", "plain")
    with world.attach(model, optimizer, {"algorithm": {"name": "ssp", "staleness": 1}}) as engine:
        for step in range(4):
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
            if comes:
                engine.together(lambda: engine.world.gather(None, "a look"))
        engine.finish(average=False)
        return engine.statistics["bytes_sent"]


def test_it_costs_training_nothing():
    assert in_process(counted, 3, True) == in_process(counted, 3, False)
