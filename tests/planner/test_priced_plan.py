"""How many bytes a plan counts, beside those that ranks send."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from relaxcomm import Algorithm, CompositionError, ConfigError, Link, Rule, attach, simulate
from relaxcomm.config.grammar import parse_algorithm
from relaxcomm.planner.links import OwnLinks
from relaxcomm.planner.priced_plan import PricedPlan
from relaxcomm.planner.replay import Replay, shapes_only
from relaxcomm.planner.scenario import Scenario, StepTimes
from relaxcomm.primitives import (
    all_gather,
    all_reduce,
    error_feedback,
    every,
    gradients,
    parameters,
    top_k,
)
from relaxcomm.tensors.items import Item
from relaxcomm_algorithms.post_local_sgd import post_local_sgd
from tests.models import take_step

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
                take_step(model(torch.ones(1, 500, dtype=torch.bfloat16)).sum(), optimizer)
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


def every_steps(algorithm, shapes=((1000,),)):
    """What is sent in a step, in models of 4 bytes an entry that go round a ring of two."""
    return (
        Replay(algorithm, shapes_only(shapes), Scenario(2, StepTimes(1.0), OwnLinks(LINK))).run().sent_bytes
    )


@pytest.mark.parametrize(
    ("one", "other", "rel"),
    [(12, 20, 1e-9), (20, 12, 1e-9), (7, 10, 1e-9), (33, 64, 0.04)],  # 33 · 64 is more than are replayed
)
def test_periods_that_do_not_divide_each_other_are_counted_over_whole_ones(one, other, rel):
    rules = [
        Rule(trigger=every(steps=steps), payload=parameters(), exchange=all_reduce(), select=str(index))
        for index, steps in enumerate((one, other))
    ]
    found = every_steps(Algorithm(tuple(rules)), [(1000,), (2000,)])
    assert found == pytest.approx(4000 / one + 8000 / other, rel=rel)


@pytest.mark.parametrize("after", [10, 5_000, 1_000_000])
def test_phases_of_any_length_are_passed_over(after):
    assert every_steps(post_local_sgd(steps=16, after_steps=after)) == 4000 / 16


def test_a_rule_that_begins_late_is_counted():
    early = Rule(trigger=every(steps=4), payload=parameters(), exchange=all_reduce(), select="0")
    late = Rule(
        trigger=every(steps=2), payload=parameters(), exchange=all_reduce(), select="1", active=(500, None)
    )
    rest = Rule(trigger=every(steps=4), payload=parameters(), exchange=all_reduce(), select="1")
    found = every_steps(Algorithm((early, late, rest)), [(1000,), (2000,)])
    assert found == 4000 / 4 + 8000 / 2 + 8000 / 4


@pytest.mark.parametrize("scope", ["model", "bucket"])
def test_a_plan_refuses_what_attach_would_and_no_buckets_that_count_as_one(scope):
    """512 billion parameters: no index tells them all, but those of each bucket."""
    compressor = error_feedback(top_k(density=0.01, scope=scope))
    algorithm = Algorithm((Rule(payload=gradients(), exchange=all_gather(), compressor=compressor),))
    model = shapes_only([(1 << 15, 1 << 15)] * 512)
    with nullcontext() if scope == "bucket" else pytest.raises(CompositionError, match="at most 2,147"):
        PricedPlan(algorithm, model, Scenario(2, StepTimes(SECONDS), OwnLinks(LINK)))
    with pytest.raises(ConfigError, match="no trainable parameters, so there is nothing to plan"):
        PricedPlan(algorithm, [], Scenario(2, StepTimes(SECONDS), OwnLinks(LINK)))
