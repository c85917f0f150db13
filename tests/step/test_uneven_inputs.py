"""What ranks that have run out of data could follow, and what is refused beforehand."""

from __future__ import annotations

import pytest

from relaxcomm import Algorithm, Rule, UsageError
from relaxcomm.primitives import all_reduce, every, parameters
from tests.algorithms.test_auto import always
from tests.engine.harness import World, in_process, on_gloo
from tests.models import CASES, take_step, trainable


def followed(world: World, first, then):
    """What refuses a phase inside join(), and what runs after steps outside of it, the same on every rank."""
    model, optimizer = trainable("toy", "plain")
    config = {"algorithm": first, "phases": [{"after_steps": 2, "algorithm": then}]}
    with world.attach(model, optimizer, config) as engine:
        with pytest.raises(UsageError) as caught, engine.join():
            pytest.fail("ranks may end here at different times")
        for step in range(4):
            take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
        with engine.join():  # no phase is to come
            pass
        return engine.algorithm.name, str(caught.value)


APART = [("bsp", "ssp"), ("ssp", "bsp"), ("async_model_average", "bsp"), ("ssp", "async_model_average")]


@pytest.mark.parametrize(("first", "then"), APART)
def test_phases_from_or_to_what_has_no_common_step_are_refused_inside_it(first, then):
    (name, refused), *others = in_process(followed, 3, first, then)
    assert others == [(name, refused)] * 2
    assert name == then
    for words in ("from or to", "common step", "last phase has begun", "engine.loader"):
        assert words in refused


@pytest.mark.ranks
def test_so_they_are_between_processes():
    (name, refused), *others = on_gloo(followed, 3, "bsp", "ssp")
    assert others == [(name, refused)] * 2
    assert (name, "to ssp" in refused) == ("ssp", True)


def planned(world: World, name):
    """What runs after uneven inputs where a planner has chosen it, or why nothing does."""
    model, optimizer = trainable("toy", "plain")
    rule = Rule(trigger=every(steps=4), payload=parameters(), exchange=all_reduce())
    algorithm = Algorithm((rule,), name="measuring", planner=always(name))
    engine = world.attach(model, optimizer, {"algorithm": algorithm})
    try:
        with engine, engine.join():
            for step in range((6, 2, 0)[world.rank]):
                take_step(CASES["toy"].local_loss(model, step, world.rank), optimizer)
    except UsageError as error:
        return str(error)
    return engine.algorithm.name


def test_so_is_what_a_planner_chooses():
    assert in_process(planned, 3, "d_psgd") == ["d_psgd"] * 3
    first, *others = in_process(planned, 3, "ssp")
    assert others == [first, first]
    assert "to ssp" in first


def backward_twice(world: World, config, twice):
    """Why a second backward in a step is refused inside join(), or None."""
    model, optimizer = trainable("toy", "plain")
    engine = world.attach(model, optimizer, config)
    try:
        with engine, engine.join():
            for step in range(6 - world.rank):
                for _ in range(1 + (step == twice)):
                    CASES["toy"].local_loss(model, step, world.rank).backward()
                optimizer.step()
                optimizer.zero_grad()
    except UsageError as error:
        return str(error)
    return None


LATE = {
    "rules": [
        {"payload": "gradients", "exchange": "all_reduce", "delay": 1, "active": [0, 3]},
        {"payload": "parameters", "exchange": "all_reduce", "active": [3, None]},
    ]
}


def test_a_second_backward_that_exchanges_is_refused_inside_it():
    for config, step in (("bsp", 1), (LATE, 2)):
        first, *others = in_process(backward_twice, 3, {"algorithm": config}, step)
        assert others == [first, first]
        assert "inside join(): shadows cannot foresee it" in first


def test_one_behind_the_last_late_result_exchanges_nothing():
    assert in_process(backward_twice, 3, {"algorithm": LATE}, 3) == [None] * 3
