"""A damaged state is told in words: where, what is there, and what a run saves."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch

import relaxcomm
from relaxcomm import ConfigError
from relaxcomm.engine.saved_state.run_schema import parse_run
from relaxcomm.engine.saved_state.state_schema import parse


@pytest.fixture(scope="module")
def saved():
    model = torch.nn.Linear(2, 1)
    with relaxcomm.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "delayed_sgd") as engine:
        return engine.run_state_dict()


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("engine", "step"), -1, "step is -1, and a run saves a whole number, 0 or more; load another"),
        (
            ("engine", "statistics", "steps"),
            "x",
            "statistics.steps is 'x', and a run saves a whole",
        ),
        (("engine", "values"), {"a": torch.nan}, "values.a is nan, and a run saves a finite number; load"),
        (("engine", "late_gradients"), [(1,)], "late_gradients.0.1 is missing; load another checkpoint"),
        (("engine", "more"), 3, "more is nothing that is saved; load another checkpoint"),
        (
            ("random", "numpy"),
            ("MT", [], 3, 4, 5.0),
            "random.numpy.0 is 'MT', and a run saves 'MT19937'",
        ),
        (("random", "torch"), torch.zeros(1), "random.torch: it is no state of PyTorch's generator; load"),
    ],
)
def test_what_is_damaged_is_told_in_words(place, value, says, saved):
    state = copy.deepcopy(saved)
    inner = state
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = value
    refuse = partial(parse, state["engine"]) if place[0] == "engine" else partial(parse_run, state)
    with pytest.raises(ConfigError) as refused:
        refuse()
    assert says in str(refused.value)


def test_what_a_controller_counts_by_is_no_float_afterwards(saved):
    parsed = parse({**saved["engine"], "values": {"period": 4, "scale": 2.0}})
    assert {name: type(value) for name, value in parsed.values.items()} == {"period": int, "scale": float}
