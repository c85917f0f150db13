"""A state that another version of a primitive has made is refused in words, on every rank."""

from __future__ import annotations

import copy
import re
from dataclasses import replace

import pytest
import torch

import relaxcomm
from relaxcomm import Algorithm, ConfigError, Rule, simulate
from relaxcomm.plugin import Outer, frozen
from relaxcomm.primitives import (
    all_gather,
    all_reduce,
    deltas,
    error_feedback,
    every,
    gradients,
    parameters,
    quorum_average,
    relative_gradient_change,
    sgd,
    top_k,
)
from tests.models import take_step


@frozen
class noted(Outer):
    """Keeps squares."""

    facts = replace(sgd(lr=0.5).facts, averages=False, slots={"squares": "equal"})

    def init(self, bucket):
        return {"squares": bucket.zeros()}

    def apply(self, cx, bucket, state, result, base):
        return base - result


def run(group, rule, saved=None):
    """Two buckets and steps, or what was saved is loaded; the state then."""
    model = torch.nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"algorithm": Algorithm((rule,), name="one"), "bucket_bytes": 40}
    with relaxcomm.attach(model, optimizer, config, process_group=group) as engine:
        if saved is not None:
            engine.load_run_state_dict(saved[group.rank()])
        for _ in range(2):
            take_step(model(torch.ones(2, 6)).square().mean(), optimizer)
        return copy.deepcopy(engine.run_state_dict())


def refused(rule, cls, method, made, monkeypatch):
    """What every rank says of a state from before a method made something else."""
    saved = simulate(lambda group: run(group, rule), 3)
    monkeypatch.setattr(cls, method, made)

    def load(group):
        try:
            run(group, rule, saved)
        except ConfigError as error:
            return str(error)

    (text,) = set(simulate(load, 3))
    return text


VERSION = (
    r"was made by another version of noted\(\): it kept squares \[4\] float32, and this one keeps {}; use "
    r"that version, or load another checkpoint$"
)
MODEL = (
    r"is of a model with other shapes or another dtype: noted\(\) kept squares \[4\] float32, and keeps {} "
    r"here, unless another version of it .*; build the model as it was saved, or load another checkpoint$"
)
MADE = {
    "added": lambda self, bucket: {"m": bucket.zeros(), "squares": bucket.zeros()},
    "renamed": lambda self, bucket: {"m": bucket.zeros()},
    "removed": lambda self, bucket: {},
    "of another dtype": lambda self, bucket: {"squares": bucket.zeros().double()},
    "of another shape": lambda self, bucket: {"squares": torch.zeros(())},
}
SAYS = {
    "added": VERSION.format(r"m \[4\] float32, squares \[4\] float32"),
    "renamed": VERSION.format(r"m \[4\] float32"),
    "removed": VERSION.format("nothing"),
    "of another dtype": MODEL.format(r"squares \[4\] float64"),
    "of another shape": MODEL.format(r"squares \[\] float32"),
}


@pytest.mark.parametrize("what", MADE)
def test_of_a_rule(what, monkeypatch):
    rule = Rule(trigger=every(steps=2), payload=deltas(), exchange=all_reduce(), outer=noted())
    text = refused(rule, noted, "init", MADE[what], monkeypatch)
    assert re.search(SAYS[what], text), text


@pytest.mark.parametrize(("features", "dtype"), [(7, torch.float32), (6, torch.float64)])
def test_of_a_model_that_was_changed(features, dtype):
    """Its parameters have the names that they had; a state of the engine alone does not hold their shapes."""
    rule = Rule(payload=gradients(), compressor=error_feedback(top_k(density=0.1)), exchange=all_gather())
    saved = simulate(lambda group: run(group, rule), 3)

    def load(group):
        model = torch.nn.Linear(features, 4, dtype=dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        config = {"algorithm": Algorithm((rule,), name="one"), "bucket_bytes": 40}
        state = {f"rank_{group.rank()}": (saved[group.rank()]["engine"],)}
        with (
            relaxcomm.attach(model, optimizer, config, process_group=group) as engine,
            pytest.raises(ConfigError, match=r"with other shapes or another dtype: (all_gather\(\)|weight) "),
        ):
            engine.load_state_dict(state)

    simulate(load, 3)


def test_of_a_service(monkeypatch):
    served = quorum_average(quorum=2)
    rule = Rule(trigger=every(steps=2), payload=deltas(), exchange=served, outer=noted())
    says = r"another version of quorum_average\(.* noted\(\): it kept .*squares \[.*this one keeps .*m \["
    text = refused(rule, noted, "init", MADE["renamed"], monkeypatch)
    assert re.search(says, text), text


def test_of_a_vote(monkeypatch):
    trigger = relative_gradient_change(threshold=0.1)
    rule = Rule(trigger=trigger, payload=parameters(), exchange=all_reduce())
    says = (
        r"another version of relative_gradient_change\(.*\): it kept .*, and this one keeps m \[1\] float32;"
    )
    text = refused(rule, type(trigger), "init_vote", lambda self: {"m": torch.zeros(1)}, monkeypatch)
    assert re.search(says, text), text
