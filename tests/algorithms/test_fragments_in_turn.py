"""Local SGD a part of the model at a time, against its reference; as rules written out."""

from __future__ import annotations

import numpy as np
import pytest

import relaxcomm.config
from relaxcomm import Rule
from relaxcomm.primitives import all_reduce, every, parameters
from tests import references
from tests.algorithms.test_streaming_diloco import THIRDS, sending
from tests.engine.harness import assert_histories_agree, in_process, simulated_workers, train

STEPS = 26


def in_thirds(**more):
    return {"algorithm": {"name": "local_sgd", "steps": 9, "fragments": 3, **more}, "bucket_bytes": 512}


@pytest.mark.parametrize("size", [3, 5])
def test_a_part_after_the_other_equals_its_reference(size):
    expected = references.local_sgd_in_parts(simulated_workers(size, "adamw"), STEPS, 9, THIRDS)
    assert_histories_agree(in_process(train, size, in_thirds(), STEPS, "adamw"), expected)


def test_moments_go_with_their_part():
    """Of a third in a step there are the parameters and the momentum."""
    plain = np.mean(in_process(sending, 2, in_thirds(), 27), axis=0)
    assert {step: plain[step] for step in range(27) if plain[step]}.keys() == {8, 11, 14, 17, 20, 23, 26}
    assert [plain[step] for step in (8, 11, 14)] == [8 * 77, 8 * 99, 8 * 49]
    both = in_process(train, 3, in_thirds(moments=["momentum_buffer"]), STEPS)
    assert np.abs(both[0][-1] - in_process(train, 3, in_thirds(), STEPS)[0][-1]).max() > 1e-6


def test_the_rules_written_out_are_the_same():
    rules = [
        {
            "trigger": {"every": {"steps": 9}},
            "payload": "parameters",
            "exchange": "all_reduce",
            "select": f"{index + 1}/3",
            "active": [3 * index, None],
        }
        for index in range(3)
    ]
    found = in_process(train, 3, {"algorithm": {"rules": rules}, "bucket_bytes": 512}, STEPS)
    np.testing.assert_array_equal(found, in_process(train, 3, in_thirds(), STEPS))


def test_more_parts_than_steps_are_refused():
    with pytest.raises(relaxcomm.CompositionError, match="at most 4 fragments"):
        relaxcomm.config.load({"algorithm": {"name": "local_sgd", "steps": 4, "fragments": 5}})


def test_a_rule_that_selects_parameters_is_cut_into_none():
    rule = Rule(trigger=every(steps=4), payload=parameters(), exchange=all_reduce(), select="head.*")
    assert rule.in_fragments(1) == (rule,)
    with pytest.raises(relaxcomm.CompositionError, match="leave its select out"):
        rule.in_fragments(2)


def test_a_fragment_that_would_begin_when_the_rule_has_ended_is_refused():
    def rule(stop):
        return Rule(trigger=every(steps=8), payload=parameters(), exchange=all_reduce(), active=(1, stop))

    with pytest.raises(
        relaxcomm.CompositionError, match=r"4 fragments: 3/4 begins in step 5, .* than step 5"
    ):
        rule(5).in_fragments(4)
    assert [one.active for one in rule(8).in_fragments(4)] == [(1, 8), (3, 8), (5, 8), (7, 8)]


@pytest.mark.parametrize("count", [0, -1, 2.0])
def test_a_number_of_fragments_is_one_or_more(count):
    rule = Rule(trigger=every(steps=8), payload=parameters(), exchange=all_reduce())
    with pytest.raises(relaxcomm.CompositionError, match="give a whole number, 1 or more"):
        rule.in_fragments(count)
