"""Rules that let replicas part for good are warned of, and late ones that overshoot together are refused."""

from __future__ import annotations

import warnings

import pytest

import relaxcomm
from relaxcomm import Algorithm, CompositionError, ConfigError, Rule
from relaxcomm.primitives import (
    all_reduce,
    averaging_server,
    deltas,
    every,
    gossip,
    gradients,
    group_all_reduce,
    momentum,
    parameters,
    relative_gradient_change,
    ring,
)


def mean(payload, steps=1, exchange=None, **more):
    return Rule(trigger=every(steps=steps), payload=payload, exchange=exchange or all_reduce(), **more)


PART = {
    "seldom": ([mean(gradients(), 4)], "in step 0 workers train alone"),
    "seldom momentum": ([mean(momentum(), 2)], "in step 0"),
    "from later on": ([mean(gradients(), active=(5, None))], "in step 0"),
    "until": ([mean(gradients(), active=(0, 5)), mean(gradients(), active=(5, 7))], "in step 7"),
    "a gap": ([mean(gradients(), active=(0, 5)), mean(gradients(), active=(6, None))], "in step 5"),
    "parameters until": ([mean(parameters(), active=(0, 8))], "in step 8"),
    "groups": ([mean(parameters(), 2, group_all_reduce())], "inside groups and no rule between"),
    "gradients in groups": ([mean(gradients(), 1, group_all_reduce())], "another gradient"),
}


@pytest.mark.parametrize("case", PART)
def test_replicas_that_part_for_good_are_warned_of(case):
    rules, words = PART[case]
    with pytest.warns(relaxcomm.CompositionWarning, match=f"{words}.* part for good"):
        Algorithm(tuple(rules))


@pytest.mark.parametrize(
    "rules",
    [
        [mean(gradients(), active=(0, 5)), mean(gradients(), active=(5, None))],
        [mean(gradients(), active=(0, 5)), mean(parameters(), 4, active=(7, None))],
        [mean(parameters(), active=(2, 5)), mean(gradients(), active=(5, None))],
        [mean(gradients(), active=(4, None)), mean(parameters(), active=(7, 8))],
        [mean(gradients(), active=(4, None)), mean(parameters(), active=(4, 5))],
        [mean(gradients(), 4), mean(parameters(), 8)],
        [mean(gradients(), 1, group_all_reduce()), mean(parameters(), 8)],
        [mean(parameters(), 1, group_all_reduce()), mean(gradients())],
        [mean(parameters(), 1, gossip()), mean(parameters(), 1, gossip())],  # two rounds of mixing
        [mean(parameters(), 4, select="1/2"), mean(parameters(), 4, select="2/2")],
        [Rule(trigger=relative_gradient_change(threshold=0.3), payload=gradients(), exchange=all_reduce())],
    ],
)
def test_those_that_meet_again_are_not(rules):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Algorithm(tuple(rules))


@pytest.mark.parametrize("payload", [gradients(), parameters(), deltas()])
def test_a_rule_that_stands_twice_is_warned_of(payload):
    with pytest.warns(relaxcomm.CompositionWarning, match="stands twice, and sends twice") as told:
        Algorithm((mean(payload, 1), mean(parameters(), 8), mean(payload, 1)))
    assert told[0].filename == __file__, "who composes is told where"


def test_a_result_of_which_nothing_is_taken_is_refused():
    with pytest.raises(ConfigError, match="merge"):
        deltas(merge=1.0)


TOGETHER = [
    (mean(parameters(), delay=1), mean(parameters(), delay=1)),
    (mean(parameters(), delay=1), mean(deltas(), 4, delay=2)),
    (mean(parameters(), 1, gossip(topology=ring()), delay=1), mean(parameters(), 4, delay=1)),
    (mean(parameters(), 8, delay=4), mean(parameters(), 8, delay=1, active=(3, None))),
    (mean(parameters(), 8, delay=1), mean(parameters(), 8, delay=4, active=(5, None))),
    (mean(parameters(), 4, delay=1), mean(parameters(), 6, delay=1, active=(2, None))),
    (mean(parameters(), 1, averaging_server(), delay="unbounded"),) * 2,
]


@pytest.mark.parametrize(("one", "other"), TOGETHER)
def test_late_results_that_overshoot_together_are_refused(one, other):
    """Each brings a replica to where the mean was: by three of them 5 becomes 40 million in 24 steps."""
    for rules in ((one, other), (other, one)):
        with pytest.raises(CompositionError, match="so that both overshoot"):
            Algorithm(rules)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (mean(parameters(), 8, delay=3), mean(parameters(), 8, delay=5, active=(3, None))),
        (mean(gradients(), delay=1), mean(parameters(), 4, delay=1)),
        (mean(parameters(), 8, delay=4, active=(0, 8)), mean(parameters(), 8, delay=4, active=(8, None))),
        (mean(parameters(), 8, delay=4, select="1/2"), mean(parameters(), 8, delay=4, select="2/2")),
        (mean(deltas(merge=0.5), 8, delay=4), mean(deltas(merge=0.5), 8, delay=4)),
        (mean(parameters(), 1, gossip(topology=ring()), delay=1), mean(parameters(), 4)),
    ],
)
def test_late_results_that_come_one_after_the_other_are_not(one, other):
    Algorithm((one, other))
