"""Whatever becomes of a saved state: it is refused with nothing changed, or training goes on from it."""

from __future__ import annotations

import copy
import re
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

import relaxcomm
from relaxcomm import ConfigError, RelaxcommError
from tests.models import CASES, take_step, trainable

ALGORITHMS: dict[str, Any] = {
    "diloco": {"name": "diloco", "steps": 3},
    "streaming_diloco": {"name": "streaming_diloco", "steps": 4, "delay": 2},
    "decoupled_diloco": {"name": "decoupled_diloco", "steps": 3, "fragments": 2},
    "ssp": "ssp",
    "selsync": {"name": "selsync", "window_steps": 4},
    "delayed_sgd": "delayed_sgd",
    "dgc": "dgc",
    "powersgd": "powersgd",
}
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**20),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from([[], {}, (), [1, 2], {"a": 1}, b"x", object(), [[[]]], torch.float16, torch.nn.Linear]),
    st.sampled_from([torch.zeros(0), torch.zeros(3), torch.ones(2, 2), torch.tensor(1)]),
    st.sampled_from([torch.zeros(226, dtype=torch.float16), torch.zeros(3).to_sparse()]),
)


@cache
def run_of(name: str):
    """A run that is stopped between two steps, and its state."""
    case = CASES["toy"]
    model, optimizer = trainable("toy", "plain")
    config = {"algorithm": ALGORITHMS[name], "bucket_bytes": 512}
    engine = relaxcomm.attach(model, optimizer, config)

    def train(begin: int, steps: int) -> None:
        for step in range(begin, begin + steps):
            take_step(case.local_loss(model, step, 0), optimizer)

    train(0, 5)
    return model, optimizer, engine, train, copied(engine.run_state_dict())


def copied(state: Any) -> Any:
    """A copy that shares nothing; what cannot be copied is shared."""
    return copy.deepcopy(state)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to everything in a nested value."""
    if isinstance(value, dict):
        inside = [place for key, item in value.items() for place in places(item, (*path, key))]
    elif isinstance(value, list):
        inside = [place for index, item in enumerate(value) for place in places(item, (*path, index))]
    else:
        inside = []
    return [path, *inside] if path else inside


def mutate(draw: Any, state: dict[str, Any]) -> None:
    """Change one thing in a state."""
    *way, last = draw(st.sampled_from(places(state)))
    holder = state
    for key in way:
        holder = holder[key]
    found = holder[last]
    kind = draw(st.sampled_from(["replace", "remove", "add", "twice"]))
    if kind == "remove":
        del holder[last]
    elif kind == "add" and isinstance(found, dict):
        found[draw(st.text(max_size=3))] = copied(draw(VALUES))
    elif kind == "twice" and isinstance(holder, list):
        holder.append(found)
    elif isinstance(found, torch.Tensor) and not found.is_sparse and draw(st.booleans()):
        holder[last] = draw(st.sampled_from([found[..., :-1] if found.dim() else found[None], found.int()]))
    else:
        holder[last] = copied(draw(VALUES))


def begin_anew(optimizer: Any, engine: Any, good: dict[str, Any]) -> None:
    """Go on from the good state, with groups that have no settings which a mutated one has added."""
    optimizer.load_state_dict(copied(good["optimizers"][0]))
    engine.load_run_state_dict(copied(good))


def try_one(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(list(ALGORITHMS)))
    _, optimizer, engine, train, good = run_of(name)
    begin_anew(optimizer, engine, good)
    state = copied(good)
    for _ in range(data.draw(st.integers(1, 3))):
        if places(state):
            mutate(data.draw, state)
    before = without_times(engine)
    try:
        engine.load_run_state_dict(state)
    except ConfigError as error:
        refused = str(error)
    else:
        try:
            train(5, 5)
        except (RelaxcommError, OverflowError):  # numbers that are not finite, or too large for torch
            optimizer.zero_grad()
        return
    assert len(refused) < 5000
    assert without_times(engine) == before


def without_times(engine):
    """A state as text, but for how long the rank has waited for others, which goes on meanwhile."""
    return re.sub(r"_communication_seconds': [^,}]+", "", repr(engine.run_state_dict()))


QUICK = settings(
    max_examples=250, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
MANY = settings(QUICK, max_examples=10_000)


@pytest.mark.slow
@QUICK
@given(st.data())
def test_a_mutated_state(data):
    try_one(data)


@pytest.mark.faults
@pytest.mark.timeout(1800)  # two minutes alone
@MANY
@given(st.data())
def test_many_mutated_states(data):
    try_one(data)


@pytest.mark.parametrize("value", [True, "0.1", None])
def test_a_setting_that_was_a_number_has_to_be_one(value):
    _, optimizer, engine, _, good = run_of("selsync")
    begin_anew(optimizer, engine, good)
    state = copied(good)
    state["optimizers"][0]["param_groups"][0]["weight_decay"] = value
    with pytest.raises(ConfigError, match=f"groups of .*'weight_decay': '{type(value).__name__}'"):
        engine.load_run_state_dict(state)
    state["optimizers"][0]["param_groups"][0]["weight_decay"] = 0.25
    engine.load_run_state_dict(state)
    assert optimizer.param_groups[0]["weight_decay"] == 0.25
    begin_anew(optimizer, engine, good)


def test_a_late_result_has_a_flag_for_each_parameter_or_none():
    _, optimizer, engine, _, good = run_of("delayed_sgd")
    begin_anew(optimizer, engine, good)
    state = copied(good)
    due, rule, unit, result, *counts = state["engine"]["late_gradients"][0]
    state["engine"]["late_gradients"][0] = (due, rule, unit, result[:-1], *counts)
    with pytest.raises(ConfigError, match=r"late_gradients with \[\d+\] float64 for \d+ parameters"):
        engine.load_run_state_dict(state)
    begin_anew(optimizer, engine, good)
