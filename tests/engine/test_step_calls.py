"""What a step costs the host, in calls: seconds of a shared machine could hold nothing so small."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
import torch
from torch import nn

import relaxcomm

WARM_STEPS, STEPS = 8, 4
LOCAL = {"name": "local_sgd", "steps": 10**6}
ALGORITHMS = {
    "bsp": "bsp",
    "local steps": LOCAL,
    "averages": {"name": "local_sgd", "steps": 1},
    "diloco": {"name": "diloco", "steps": 1},
    "selsync": {"name": "selsync", "threshold": 1e9, "window_steps": 5},
    "gaussiank_sgd": "gaussiank_sgd",
    "qsgd": "qsgd",
}
MOST_OF_A_TENSOR = {"diloco": 1, "selsync": 2, "qsgd": 8}
"""Calls of Python and C for a tensor more in a bucket, none in others: it is handed over with all.

DiLoCo looks whether each has moved, SelSync at each gradient; QSGD codes block by block.
"""
MOST_OWN = {"local steps": (131, 0), "bsp": (420, 190), "averages": (375, 165), "diloco": (420, 200)}
"""Calls of relaxcomm's functions in a step with one bucket, and for each bucket more."""


@pytest.fixture(autouse=True)
def small_tensors_are_large():
    """They are not here, where each would be handed over alone."""


class Sum(nn.ModuleList):
    """Layers side by side, all of which get a gradient that moves them."""

    def forward(self, x):
        return sum(layer(x) for layer in self)


def step(model, optimizer):
    model(torch.ones(1, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def calls(train) -> Counter[str]:
    """Of Python and of C, and those of relaxcomm's own functions alone."""
    seen: Counter[str] = Counter()

    def see(frame, event, argument):
        seen["all"] += event in ("call", "c_call")
        seen["own"] += event == "call" and "relaxcomm" in frame.f_code.co_filename

    sys.setprofile(see)
    try:
        train()
    finally:
        sys.setprofile(None)
    return seen


def added(algorithm, layers, bucket_bytes=1 << 20) -> dict[str, int]:
    """What an engine of one rank adds to a step, and in how many buckets."""

    def trained(attached):
        torch.manual_seed(0)
        model = Sum(nn.Linear(8, 8) for _ in range(layers))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        engine = relaxcomm.attach(model, optimizer, config) if attached else None
        for _ in range(WARM_STEPS):
            step(model, optimizer)
        seen = [calls(lambda: step(model, optimizer)) for _ in range(STEPS)]
        least = {what: min(one[what] for one in seen) for what in ("all", "own")}
        if engine is not None:
            least["buckets"] = len(engine._session.bound.plan.buckets)
            engine.close()
        return least

    config = {"algorithm": algorithm, "bucket_bytes": bucket_bytes}
    plain, found = trained(attached=False), trained(attached=True)
    # Engines that other tests have left open look at every optimizer's step.
    return {**found, **{what: found[what] - plain[what] for what in ("all", "own")}}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_tensor_more_costs_no_call(name):
    few, many = (added(ALGORITHMS[name], layers)["all"] for layers in (4, 14))
    assert many - few <= 2 * (14 - 4) * (MOST_OF_A_TENSOR.get(name, 0) + 0.5)


@pytest.mark.parametrize("name", MOST_OWN)
def test_a_step_and_a_bucket_more_cost_few_calls(name):
    in_one, in_several = (added(ALGORITHMS[name], 8, size) for size in (1 << 20, 600))
    more = in_several["buckets"] - in_one["buckets"]
    assert more >= 3
    of_step, of_bucket = MOST_OWN[name]
    assert in_one["own"] <= of_step
    assert in_several["own"] - in_one["own"] <= more * of_bucket
