"""Warnings name the user's line, however deep in relaxcomm they arise."""

from __future__ import annotations

import linecache
import warnings

import pytest
import torch

import relaxcomm
from relaxcomm import Algorithm, Rule
from relaxcomm.primitives import all_gather, deltas, every, gossip, gradients, top_k
from relaxcomm.system.warn import warn
from tests.models import trainable

PARTS = {"algorithm": {"rules": [{"payload": "gradients", "exchange": "gossip"}]}}


def attached():
    relaxcomm.attach(*trainable("toy", "plain"), PARTS).close()  # here


def composed():
    Algorithm((Rule(payload=gradients(), exchange=gossip()),))  # here


def called_by_torch():
    names = {"__name__": "relaxcomm.hooks", "warn": warn}
    exec("def hook(*_): warn('of a hook', UserWarning)", names)
    model = torch.nn.Linear(1, 1)
    model.register_forward_hook(names["hook"])
    model(torch.ones(1))  # here


@pytest.mark.parametrize("act", [attached, composed, called_by_torch], ids=lambda act: act.__name__)
def test_the_line_is_the_users(act):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        act()
    assert told
    for one in told:
        assert one.filename == __file__
        assert linecache.getline(one.filename, one.lineno).endswith("# here\n")


def test_a_line_is_warned_of_once():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(3):
            warn("the same", UserWarning)
            warn("another", UserWarning)
    assert [str(one.message) for one in told] == ["the same", "another"]


def test_what_is_made_of_rules_is_not_warned_of_again():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        coder = top_k(density=0.1)
        rule = Rule(trigger=every(steps=4), payload=deltas(), compressor=coder, exchange=all_gather())
        Algorithm(rule.in_fragments(2)).over({"a": 3, "b": 4})
    (one,) = told
    assert "loses a part" in str(one.message)
    assert linecache.getline(one.filename, one.lineno).strip().startswith("rule = Rule(")
