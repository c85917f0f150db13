"""Stop, save, rebuild, load, go on: bit for bit the run that was never interrupted."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
import torch

import relaxcomm
from tests.engine.harness import World, on_gloo, values
from tests.engine.test_compositions import COMPOSITIONS
from tests.models import CASES, make_optimizer, trainable

STEPS = 14
CONFIGS = {
    "bsp": "bsp",
    "local_sgd": {"name": "local_sgd", "steps": 4},
    "post_local_sgd": {"name": "post_local_sgd", "steps": 3, "after_steps": 5},
    "slowmo": {"name": "slowmo", "steps": 3, "lr": 0.9, "momentum": 0.6},
    "diloco": {"name": "diloco", "steps": 4, "lr": 0.7, "momentum": 0.9},
    "decoupled_diloco": {"name": "decoupled_diloco", "steps": 4, "quorum": 3, "delay": 0},
    "fp16_gradients": {
        "rules": [
            {"payload": "gradients", "exchange": "all_reduce", "compressor": {"cast": {"dtype": "float16"}}}
        ]
    },
}
LATE = {
    "late_error_feedback": ("all_gather", {"error_feedback": {"top_k": {"density": 0.3}}}),
    "late_server_feedback": (
        {"scatter_gather": {"server_feedback": True}},
        {"error_feedback": {"quantize": {"bits": 2}}},
    ),
}
CONFIGS |= {
    name: {
        "rules": [
            {
                "trigger": {"every": {"steps": 3}},
                "payload": "deltas",
                "compressor": compressor,
                "exchange": exchange,
                "delay": 2,
            }
        ]
    }
    for name, (exchange, compressor) in LATE.items()
}
CONFIGS |= {name: {"rules": rules} for name, (rules, _, _) in COMPOSITIONS.items()}


def steps(case, model, optimizer, rank: int, span: range, history: list) -> None:
    for step in span:
        case.local_loss(model, step, rank).backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(values(model))


def uninterrupted(world: World, algorithm, optimizer_name="adamw"):
    case, history = CASES["toy"], []
    model = case.model(seed=world.rank)
    optimizer = make_optimizer(optimizer_name, model)
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        steps(case, model, optimizer, world.rank, range(STEPS), history)
        counted = {key: engine.statistics[key] for key in ("steps", "synchronisations")}
    return [*history, values(model)], counted


def interrupted(world: World, algorithm, stop: int, folder: str, optimizer_name="adamw"):
    case, history = CASES["toy"], []
    model = case.model(seed=world.rank)
    optimizer = make_optimizer(optimizer_name, model)
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        steps(case, model, optimizer, world.rank, range(stop), history)
        relaxcomm.checkpoint.save(engine, folder)
        steps(case, model, optimizer, world.rank, range(stop, stop + 1), [])  # what is saved does not change
    model = case.model(seed=50 + world.rank)
    optimizer = make_optimizer(optimizer_name, model)
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        relaxcomm.checkpoint.load(engine, folder)
        steps(case, model, optimizer, world.rank, range(stop, STEPS), history)
        counted = {key: engine.statistics[key] for key in ("steps", "synchronisations")}
    return [*history, values(model)], counted


@cache
def without_interruption(network, name):
    return network(uninterrupted, 3, CONFIGS[name])


@pytest.mark.every_other("network", "name", "stop", of=4)
@pytest.mark.parametrize("stop", [1, 6, 9])
@pytest.mark.parametrize("name", CONFIGS)
def test_resumed_run_is_bit_identical(network, name, stop, tmp_path):
    whole = without_interruption(network, name)
    resumed = network(interrupted, 3, CONFIGS[name], stop, str(tmp_path))
    for rank, ((expected, counts), (found, resumed_counts)) in enumerate(zip(whole, resumed, strict=True)):
        assert resumed_counts == counts
        for step, (wanted, got) in enumerate(zip(expected, found, strict=True)):
            np.testing.assert_array_equal(
                got, wanted, err_msg=f"rank {rank}, after step {step}, stopped at {stop}"
            )


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
    "run": r"rank 1: the saved engine state has algorithm .*local_sgd.*, this run has .*; configure",
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
