"""What is said of a forecast beside its numbers."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import ClassVar

import pytest

from relaxcomm import Algorithm, Link, Rule
from relaxcomm.config.grammar import parse_algorithm
from relaxcomm.planner.forecast import forecast
from relaxcomm.planner.links import OwnLinks
from relaxcomm.planner.priced_plan import PricedPlan
from relaxcomm.planner.remarks import too_many_connections
from relaxcomm.planner.replay import shapes_only
from relaxcomm.planner.scenario import Scenario, StepTimes
from relaxcomm.plugin import Trigger, TriggerFacts, frozen
from relaxcomm.primitives import (
    all_gather,
    all_reduce,
    deltas,
    error_feedback,
    every,
    gradients,
    parameters,
    quorum_average,
    top_k,
)
from relaxcomm.topology import complete, ring

ON = Scenario(3, StepTimes(0.1), OwnLinks(Link(bytes_per_second=1e9)))


@frozen
class by_chance(Trigger):
    """In a tenth of all steps, drawn anew for each."""

    facts: ClassVar[TriggerFacts] = every(steps=1).facts

    def fires(self, cx):
        return random.Random(cx.step).random() < 0.1


def found(*rules):
    return forecast(Algorithm(rules), shapes_only([(100, 1000)]), ON, utilisations=())


def test_what_ends_is_left_out_and_said_so():
    """Nor is anything said of what it costs to code."""
    few = error_feedback(compressor=top_k(density=0.1))
    first = Rule(payload=gradients(), compressor=few, exchange=all_gather(), active=(0, 5_000))
    then = Rule(trigger=every(steps=8), payload=parameters(), exchange=all_reduce(), active=(5_000, None))
    assert found(first, then).remarks == (
        "counted from step 5,000 on, from which its rules stay as they are",
    )
    (loses,) = found(Rule(payload=gradients(), compressor=few, exchange=all_gather())).remarks
    assert loses.startswith("compression loses")


def test_a_trigger_without_a_period_is_counted_over_many_steps_and_said_so():
    plan = found(Rule(trigger=by_chance(), payload=parameters(), exchange=all_reduce()))
    assert plan.replayed.sent_bytes == pytest.approx(0.1 * 4 / 3 * 400_000, rel=0.15)
    assert plan.remarks == ("its trigger follows no period that is known, so 2,000 steps were counted",)


@pytest.mark.parametrize(
    ("workers", "quorum", "grace_seconds", "jitter", "is_said"),
    [
        (4, None, 0.0, 0.0, True),  # one of four comes after the third
        (4, None, 1.0, 0.0, False),
        (4, 2, 0.0, 0.0, False),
        (4, 2, 0.0, 0.1, True),
        (4, 1, 0.0, 0.1, False),
        (4, 4, 0.0, 0.1, False),
    ],
)
def test_who_pushes_after_a_quorum_is_said_to_wait_for_the_next(
    workers, quorum, grace_seconds, jitter, is_said
):
    rule = Rule(payload=deltas(), exchange=quorum_average(quorum=quorum, grace_seconds=grace_seconds))
    scenario = replace(ON, workers=workers, step_times=StepTimes(0.1, jitter))
    remarks = forecast(Algorithm((rule,)), shapes_only([(9,)]), scenario, utilisations=()).remarks
    assert any("pushes after a quorum" in one for one in remarks) == is_said


@pytest.mark.parametrize(
    ("name", "workers", "topology", "words"),
    [
        ("bsp", 300, complete(), []),
        ("bsp", 1000, complete(), ["2,997 connections, 3 to each"]),
        ("d_psgd", 1000, ring(), ["3,996 connections, 4 to each"]),
        ("ssp", 8, complete(), []),
        ("ssp", 300, complete(), ["1,495 connections, 5 to each", "598 threads for its services"]),
    ],
)
def test_what_gloo_keeps_for_each_other_worker(name, workers, topology, words):
    on = Scenario(workers, StepTimes(0.1), OwnLinks(Link()), topology, bucket_bytes=4096)
    said = too_many_connections(PricedPlan(parse_algorithm(name), shapes_only([(1000,), (900,)]), on))
    assert len(said) == len(words)
    assert all(part in whole for part, whole in zip(words, said, strict=True))
