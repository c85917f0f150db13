"""Arrivals that are compared with the last backward's, against the same ones counted."""

from __future__ import annotations

import random

import pytest
import torch

from relaxcomm.errors import UsageError
from relaxcomm.replica.sharding import item_of
from relaxcomm.step.readiness import Readiness
from relaxcomm.tensors.buckets import Bucket

NAMES = [f"p{index}" for index in range(8)]


def bound(first: list[int]) -> Readiness:
    """Two buckets of four parameters, and a first backward."""
    readiness = Readiness(NAMES)
    readiness.open()
    assert not readiness.arrive(first)
    items = [item_of(name, torch.nn.Parameter(torch.zeros(2))) for name in NAMES]
    readiness.bind([Bucket(0, items[:4]), Bucket(1, items[4:])])
    readiness.learn()
    return readiness


def backward(readiness: Readiness, batches: list[list[int]]) -> list[list[int]]:
    """Which buckets can be launched after each batch."""
    readiness.open()
    return [list(readiness.complete()) if readiness.arrive(batch) else [] for batch in batches]


def test_the_first_backward_only_shows_the_order():
    readiness = Readiness(NAMES)
    readiness.open()
    assert not readiness.arrive([3, 1, 3])
    assert readiness.order()[:2] == ["p3", "p1"]
    assert sorted(readiness.order()) == NAMES
    assert readiness.missing() == {*NAMES} - {"p1", "p3"}


def test_a_first_backward_that_has_failed_shows_nothing():
    readiness = Readiness(NAMES)
    readiness.open()
    readiness.arrive([3, 1, 0])
    readiness.abort()
    readiness.open()
    readiness.arrive([5])
    assert "p3" in readiness.missing()
    assert readiness.order()[0] == "p5"


def test_one_that_has_failed_later_leaves_nothing_behind():
    readiness = bound([0, 1, 2, 3, 4, 5, 6, 7])
    readiness.open()
    readiness.arrive([0, 1, 2, 3])
    assert list(readiness.complete()) == [0]
    readiness.abort()
    assert "p0" in readiness.missing()
    assert backward(readiness, [[0, 1, 2, 3], [4, 5, 6, 7]]) == [[0], [1]]


def test_buckets_are_closed_by_their_last_gradients():
    readiness = bound([0, 1, 2, 3, 4, 5, 6, 7])
    assert readiness.closing == {3, 7}
    assert backward(readiness, [[0], [1, 2, 3], [4, 5, 6, 7]]) == [[], [0], [1]]
    assert backward(readiness, [[0], [1, 3, 2], [4, 5, 6, 7]]) == [[], [0], [1]]
    assert readiness.closing == {2, 3, 7}


def test_one_that_arrives_twice_is_waited_for_twice():
    readiness = bound([0, 1, 0, 2, 3, 4, 5, 6, 7])
    assert backward(readiness, [[0, 1, 2, 3], [0], [4, 5, 6, 7]]) == [[], [0], [1]]
    readiness.open()
    readiness.arrive([0])
    assert not readiness.has_all(0)
    readiness.arrive([0])
    assert readiness.has_all(0)


def test_one_that_comes_again_is_refused_once_its_bucket_was_handed_out():
    readiness = bound([0, 1, 2, 3, 4, 5, 6, 7])
    for _ in range(2):  # compared with itself, too
        assert backward(readiness, [[0, 1, 2, 0], [3], [4, 5, 6, 7]]) == [[], [0], [1]]
        with pytest.raises(UsageError, match="p0 got another gradient"):
            backward(readiness, [[0, 1, 2, 3], [0]])


def test_one_that_came_again_in_time_before_is_refused_where_it_is_late():
    readiness = bound([0, 1, 2, 3, 4, 5, 6, 7])
    assert backward(readiness, [[0, 1, 2, 3, 0], [4, 5, 6, 7]]) == [[0], [1]]
    with pytest.raises(UsageError, match="p0 got another gradient"):
        backward(readiness, [[0, 1, 2, 3], [0], [4, 5, 6, 7]])


@pytest.mark.parametrize("seed", range(20))
def test_whatever_came_before_makes_no_difference(seed):
    draw = random.Random(seed)
    readiness = bound(list(range(8)))
    for _ in range(30):
        come = draw.choice([list(range(8)), draw.sample(range(8), draw.randint(1, 8))])
        cuts = sorted(draw.sample(range(1, 8), 2))
        batches = [come[: cuts[0]], come[cuts[0] : cuts[1]], come[cuts[1] :]]
        assert backward(readiness, batches) == backward(bound(list(range(8))), batches)
        assert readiness.missing() == {name for index, name in enumerate(NAMES) if index not in come}


def test_the_order_of_many_parameters_is_found_in_one_pass():
    class Name(str):
        looked_up = 0

        def __hash__(self):
            Name.looked_up += 1
            return super().__hash__()

    names = [Name(index) for index in range(100)]
    readiness = Readiness(names)
    readiness.open()
    readiness.arrive(list(range(1, 100, 2)))
    assert readiness.order() == names[1::2] + names[::2]
    assert Name.looked_up <= 4 * len(names)
