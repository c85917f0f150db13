"""Stop, save, rebuild, load, go on: bit for bit the run that was never interrupted."""

from __future__ import annotations

import re
from itertools import islice

import numpy as np
import pytest
import torch

import relaxcomm
from tests.engine.harness import World, on_gloo, values
from tests.models import CASES, make_optimizer, take_step, trainable

STEPS = 14
CONFIGS = {
    "slowmo": {"name": "slowmo", "steps": 3, "lr": 0.9, "momentum": 0.6},
    "diloco": {"name": "diloco", "steps": 4, "lr": 0.7, "momentum": 0.9},
}


def steps(case, model, optimizer, rank: int, span: range, history: list) -> None:
    for step in span:
        take_step(case.local_loss(model, step, rank), optimizer)
        history.append(values(model))


def interrupted(world: World, stop: int, folder: str):
    """Without a stop the whole run."""
    case, history, algorithm = CASES["toy"], [], {"algorithm": CONFIGS["diloco"]}
    for span in filter(len, (range(stop), range(stop, STEPS))):
        model, optimizer = trainable("toy", "adamw", seed=world.rank + span.start)
        with world.attach(model, optimizer, algorithm) as engine:
            if span.start:
                relaxcomm.checkpoint.load(engine, folder)
            steps(case, model, optimizer, world.rank, span, history)
            counted = {key: engine.statistics[key] for key in ("steps", "synchronisations")}
            if span.stop < STEPS:
                relaxcomm.checkpoint.save(engine, folder)
                steps(case, model, optimizer, world.rank, range(stop, stop + 1), [])  # what is saved stays
    return history, counted


@pytest.mark.ranks
def test_a_run_on_gloo_is_resumed_bit_for_bit(tmp_path):
    """In process tests/golden resumes every algorithm."""
    whole, resumed = (on_gloo(interrupted, 3, stop, str(tmp_path)) for stop in (STEPS, 6))
    for (expected, counts), (found, resumed_counts) in zip(whole, resumed, strict=True):
        assert resumed_counts == counts
        np.testing.assert_array_equal(found, expected)


def samples_since_an_exchange(engine: relaxcomm.Engine) -> int:
    state, ((task, *_), *_) = engine._session.bound.state, engine._session.bound.plan.tasks
    return state.next_samples(task)


def test_samples_since_an_exchange_are_counted_on():
    """A server weights by them."""

    def attached(group):
        model, optimizer = trainable("toy", "plain")
        config = {"algorithm": {"name": "local_sgd", "steps": 9}}
        engine = relaxcomm.attach(model, optimizer, config, process_group=group)
        return engine, engine.loader(range(99), batch_size=4), model, optimizer

    def train(model, optimizer, batches):
        for step, _ in enumerate(batches):
            take_step(CASES["toy"].local_loss(model, step, 0), optimizer)

    def program(group):
        engine, loader, *trained = attached(group)
        with engine:
            train(*trained, islice(loader, 3))
            state = engine.state_dict()
        engine, loader, *trained = attached(group)
        with engine:
            engine.load_state_dict(state)
            before = samples_since_an_exchange(engine)
            train(*trained, islice(loader, 1))
            return before, samples_since_an_exchange(engine)

    assert relaxcomm.simulate(program, 3) == [(12, 4)] * 3


def load_into_another(world: World):
    model = CASES["toy"].model(seed=0)
    with world.attach(model, make_optimizer("plain", model), {"algorithm": CONFIGS["diloco"]}) as engine:
        state = engine.state_dict()
    other = torch.nn.Linear(3, 2)
    with world.attach(other, make_optimizer("plain", other), {"algorithm": CONFIGS["diloco"]}) as engine:
        engine.load_state_dict(state)


def load_of_another_algorithm(world: World):
    model, optimizer = trainable("toy", "plain", seed=0)
    with world.attach(model, optimizer, {"algorithm": CONFIGS["diloco"]}) as engine:
        state = engine.state_dict()
    with world.attach(model, optimizer, {"algorithm": CONFIGS["slowmo"]}) as engine:
        engine.load_state_dict(state)


def load_after_the_same_switch(world: World) -> tuple[str, float]:
    model, optimizer = trainable("toy", "plain", seed=0)
    with world.attach(model, optimizer, {"algorithm": "bsp"}) as engine:
        engine.switch(CONFIGS["diloco"])
        steps(CASES["toy"], model, optimizer, world.rank, range(3), [])
        state = engine.state_dict()
    with world.attach(model, optimizer, {"algorithm": "bsp"}) as engine:
        engine.switch(CONFIGS["diloco"])
        engine.load_state_dict(state)
        return engine.algorithm.name, engine.statistics["steps"]


def load_one_wrong(world: World, algorithm, wrong: str):
    """Rank 1 has the state of another run, moment or rank, in a run of a few steps; all go on with theirs."""
    model = CASES["toy"].model()
    optimizer, case = make_optimizer("plain", model), CASES["toy"]
    with world.attach(model, optimizer, {"algorithm": "local_sgd"}) as engine:
        another_run = engine.state_dict()
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        older = engine.state_dict()
        steps(case, model, optimizer, world.rank, range(3), [])
        state = engine.state_dict()
    name, (mine,) = next(iter(state.items()))
    kinds = {
        "run": another_run,
        "moment": older,
        "rank": {name: ({**mine, "rank": 0},)},
        "key": {"rank_0": (mine,)},
        "schema": {name: ({**mine, "schema": 0},)},
    }
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        engine.load_state_dict(kinds[wrong] if world.rank == 1 else state)


def errors_of(network, *args) -> dict[int, tuple[str, str]]:
    with pytest.raises(Exception, match="state") as caught:
        network(*args)
    same = (type(caught.value).__name__, str(caught.value))
    return getattr(caught.value, "errors", dict.fromkeys(range(3), same))


def test_the_state_of_another_model_is_refused(network):
    for kind, text in errors_of(network, load_into_another, 3).values():
        assert kind == "ConfigError"
        assert "other trainable parameters" in text


def test_the_state_of_another_algorithm_is_refused_where_all_load_it(network):
    for kind, text in errors_of(network, load_of_another_algorithm, 3).values():
        assert kind == "ConfigError"
        says = r"has algorithm .*diloco.*, this run has .*slowmo.*configure the algorithm.*engine.switch\(…\)"
        assert re.search(says, text, re.DOTALL), text


def test_the_state_after_a_switch_is_loaded_after_the_same_switch(network):
    assert network(load_after_the_same_switch, 3) == [("diloco", 3)] * 3


WRONG = {
    "run": r"saved engine state has algorithm .*local_sgd.*, this run has .*; configure .* with `phases`",
    "key": r"rank 1: the saved engine state has \['rank_0'\], and 'rank_1' .* is needed; load what this",
    "moment": r"ranks disagree on step: rank 0 has 3, rank 1 has 0; load the states .* saved together",
    "rank": r"rank 1: the saved engine state has rank 0, this run has 1; load",
    "schema": r"rank 1: the saved engine state has schema 0, this run has 2; load",
}


@pytest.mark.every_other("algorithm", "wrong")
@pytest.mark.parametrize(
    ("algorithm", "wrong"),
    [
        *((algorithm, wrong) for algorithm in ("bsp", "diloco") for wrong in WRONG),
        *(
            ("ssp", wrong) for wrong in ("run", "rank", "key", "schema")
        ),  # its ranks need not be in the same step
    ],
)
@pytest.mark.ranks
def test_one_rank_with_the_wrong_state_is_an_error_on_all(algorithm, wrong):
    errors = errors_of(on_gloo, load_one_wrong, 3, algorithm, wrong)
    assert len(errors) == 3
    for kind, text in errors.values():
        assert kind == "ConfigError"
        assert re.search(WRONG[wrong], text, re.DOTALL), text
