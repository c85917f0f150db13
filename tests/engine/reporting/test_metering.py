"""What a training program tells of itself, and the lines that a run log says it in."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import relaxcomm
from relaxcomm import UsageError
from relaxcomm.monitoring.collector import check_name
from relaxcomm.network.generations import Generation
from tests.models import take_step
from tests.monitoring.harness import read_log

NUMBERS = [np.float32(2), np.float64(2), np.int64(2), np.array(2.0), np.array([[2]]), Fraction(2)]
NO_NUMBERS = [np.ones(2), np.array("a"), np.array([None]), torch.ones(2), 2j, "2", None]
NO_NUMBERS += [torch.tensor(2j), torch.tensor(2.0, device="meta")]


def attached(
    folder, algorithm: Any = "bsp", **metrics: Any
) -> tuple[nn.Module, torch.optim.Optimizer, relaxcomm.Engine]:
    """A model in training by itself, which writes a log."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"algorithm": algorithm, "output": str(folder), "metrics": {"port": None, **metrics}}
    return model, optimizer, relaxcomm.attach(model, optimizer, config)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1) -> None:
    for _ in range(steps):
        take_step(model(torch.ones(1, 4)).sum(), optimizer)


def test_a_tensor_that_changes_later_is_logged_as_it_was(tmp_path):
    model, optimizer, engine = attached(tmp_path)
    mean = torch.zeros(())
    with engine:
        for step in range(3):
            mean.fill_(step)
            engine.observe(loss=mean)
            engine.observe_evaluation(accuracy=mean)
            mean.fill_(-1)
            train(model, optimizer)
    lines = read_log(tmp_path, 0)
    assert [line["loss"] for line in lines if "loss" in line] == [0, 1, 2]
    assert [line["evaluation"]["accuracy"] for line in lines if "evaluation" in line] == [0, 1, 2]


@pytest.mark.parametrize("number", [*NUMBERS, torch.tensor([2]), 2], ids=repr)
def test_numbers_of_any_kind_are_observed(tmp_path, number):
    model, optimizer, engine = attached(tmp_path)
    with engine:
        engine.observe(loss=number)
        engine.observe_evaluation(accuracy=number)
        train(model, optimizer)
    _, evaluation, step, summary = read_log(tmp_path, 0)
    assert evaluation["evaluation"]["accuracy"] == step["loss"] == summary["summary"]["values"]["loss"] == 2


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_what_is_no_number_is_refused(tmp_path, value):
    with attached(tmp_path)[2] as engine:
        for observe in (engine.observe, engine.observe_evaluation):
            with pytest.raises(UsageError, match="loss is to be observed, but is no number: "):
                observe(loss=value)


@pytest.mark.parametrize("value", [10**400, Fraction(10**400)], ids=["whole", "fraction"])
def test_what_no_float_holds_is_refused(tmp_path, value):
    """The first scrape would lose all of the rank's metrics with it."""
    with attached(tmp_path)[2] as engine, pytest.raises(UsageError, match="but is too large for a float"):
        engine.observe(loss=value)


def test_of_a_tensor_that_is_no_number_the_shape_is_told(tmp_path):
    with attached(tmp_path)[2] as engine:
        for vector, kind in ((torch.ones(5), "Tensor"), (np.ones(5), "ndarray")):
            with pytest.raises(UsageError, match=rf"is no number: {kind} of shape \[5\]; reduce it first"):
                engine.observe(loss=vector)


def test_no_value_takes_the_place_of_what_a_line_says_itself(tmp_path):
    model, optimizer, engine = attached(tmp_path)
    with engine:
        train(model, optimizer)
    for name in read_log(tmp_path, 0)[1]:
        with pytest.raises(UsageError, match="a value cannot be called"):
            check_name(name)


def test_steps_are_counted_on_when_the_algorithm_switches(tmp_path):
    model, optimizer, engine = attached(tmp_path, {"name": "local_sgd", "steps": 2})
    with engine:
        train(model, optimizer, 3)
        engine.switch("bsp")
        train(model, optimizer, 2)
        engine.observe_evaluation(accuracy=1)
        assert engine.step == 5
    kinds = [(next(iter(line)), line.get("step")) for line in read_log(tmp_path, 0)[1:-1]]
    assert kinds == [("time", 2), ("switched_to", None), ("time", 4), ("time", 5), ("evaluation", 5)]
    assert read_log(tmp_path, 0)[-1]["summary"]["status"] == "closed at step 5"


def test_lost_ranks_stay_in_a_log_that_is_full(tmp_path):
    model, optimizer, engine = attached(tmp_path, log_bytes=16_384)
    with engine:
        for number in (1, 2, 3):
            train(model, optimizer, 35)
            engine._session.metering._lines.ranks_changed(
                engine._session.bound, Generation(number, (0,), lost={number: "has ended"})
            )
    lines = read_log(tmp_path, 0)
    changes = [(line["generation"], line["step"]) for line in lines if next(iter(line)) == "generation"]
    assert changes == [(1, 35), (2, 70), (3, 105)]
    assert len(lines) < 105
