"""Slots find their parameters again in other buckets."""

import torch

from relaxcomm.engine.switching.carry_over import carried_over
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item


def items(*sizes):
    return [Item(f"p{index}", torch.zeros(size)) for index, size in enumerate(sizes)]


def test_parameter_by_parameter():
    first, second, third = items(2, 3, 1)
    before = [
        (Bucket(0, [first, second]), {"residual": torch.tensor([1.0, 2, 3, 4, 5])}),
        (Bucket(1, [third]), {"residual": torch.tensor([6.0])}),
    ]
    bucket = Bucket(0, [third, second])
    slot, found = carried_over("residual", torch.zeros(4), bucket, before)
    assert (slot.tolist(), found) == ([6, 3, 4, 5], {"p1", "p2"})
    assert before[0][1]["residual"].tolist() == [1, 2, 3, 4, 5]


def test_what_is_found_nowhere_stays_as_it_was_made():
    first, other = items(2, 2)
    before = [(Bucket(0, [first]), {"residual": torch.ones(2), "seed": torch.ones(1)})]
    fresh = torch.full((4,), 7.0)
    slot, found = carried_over("residual", fresh, Bucket(0, [other, first]), before)
    assert (slot.tolist(), found) == ([7, 7, 1, 1], {"p0"})
    slot, found = carried_over("velocity", fresh, Bucket(0, [other, first]), before)
    assert (slot.tolist(), found) == ([7] * 4, set())
    seed = torch.zeros(1)
    assert carried_over("seed", seed, Bucket(0, [first]), before) == (seed, set())


def test_an_equal_bucket_takes_over_the_memory():
    both = items(2, 3)
    kept = torch.arange(5.0)
    before = [(Bucket(4, both), {"residual": kept})]
    slot, found = carried_over("residual", torch.zeros(5), Bucket(0, both), before)
    assert slot is kept
    assert found == {"p0", "p1"}


def test_entries_that_lie_in_another_order_by_now_stay_those_of_their_parameters():
    weight = torch.zeros(2, 3)
    item = Item("weight", weight)
    before = [(Bucket(0, [item]), {"residual": torch.arange(6.0)})]
    weight.data = weight.t().contiguous().t()  # as `.to(memory_format=torch.channels_last)` does
    bucket = Bucket(0, [item])
    slot, found = carried_over("residual", torch.zeros(6), bucket, before)
    assert (slot.tolist(), found) == ([0, 3, 1, 4, 2, 5], {"weight"})
    assert bucket.views(slot)[0].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_another_precision_is_converted():
    both = items(2, 3)
    before = [(Bucket(0, both), {"residual": torch.arange(5.0)})]
    slot, found = carried_over("residual", torch.zeros(5, dtype=torch.float64), Bucket(0, both), before)
    assert (slot.dtype, slot.tolist(), len(found)) == (torch.float64, [0, 1, 2, 3, 4], 2)


def test_of_two_rules_the_later_one_counts():
    both = items(2, 3)
    before = [(Bucket(0, both), {"residual": torch.zeros(5)}), (Bucket(0, both), {"residual": torch.ones(5)})]
    for bucket in (Bucket(0, both), Bucket(0, both[::-1])):
        assert carried_over("residual", torch.zeros(5), bucket, before)[0].tolist() == [1] * 5
