"""How many bytes a plan counts, beside those that ranks send."""

from __future__ import annotations

import pytest
import torch

from relaxcomm import Link, attach, simulate
from relaxcomm.config.grammar import parse_algorithm
from relaxcomm.planner.links import OwnLinks
from relaxcomm.planner.replay import Replay
from relaxcomm.planner.scenario import Scenario, StepTimes
from relaxcomm.tensors.buckets import Item

LINK = Link(bytes_per_second=12.5e6, latency_seconds=1e-3)
SECONDS, FIRST, STEPS = 0.05, 8, 24


def make_model():
    return torch.nn.Linear(500, 20, bias=False, dtype=torch.bfloat16)


def sent(algorithm, ranks):
    """What a rank sends in a step, on average, once it has taken a few."""

    def train(group):
        model = make_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        with attach(model, optimizer, {"algorithm": algorithm}, process_group=group) as engine:
            begun = 0
            for step in range(FIRST + STEPS):
                begun = engine.statistics["bytes_sent"] if step == FIRST else begun
                group.sleep(SECONDS)
                model(torch.ones(1, 500, dtype=torch.bfloat16)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            return (engine.statistics["bytes_sent"] - begun) / STEPS

    return sum(simulate(train, ranks, link=LINK)) / ranks


def planned(algorithm, ranks):
    items = [Item(name, one) for name, one in make_model().named_parameters()]
    on = Scenario(ranks, StepTimes(SECONDS), OwnLinks(LINK))
    return Replay(parse_algorithm(algorithm), items, on).run().sent_bytes


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "local_sgd", "steps": 4, "moments": ["exp_avg", "exp_avg_sq"]},
        {"name": "ssp"},
        {"name": "ad_psgd"},
    ],
    ids=lambda one: one["name"],
)
def test_what_is_sent_wider_than_the_model_is_counted_so(algorithm):
    """The optimizers' moments, and the answers of servers and neighbours, are float32 at least."""
    assert planned(algorithm, 4) == pytest.approx(sent(algorithm, 4), rel=0.03)
