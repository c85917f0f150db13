"""Differences that are made where they are looked at, in whatever parts."""

import pytest
import torch

from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item


def bucket_of(*tensors: torch.Tensor) -> Bucket:
    return Bucket(0, [Item(str(number), one) for number, one in enumerate(tensors)])


def random_bucket() -> tuple[Bucket, torch.Tensor]:
    shapes = ((5,), (4, 3, 2, 2), (0,), (), (7, 3))
    tensors = [torch.randn(shape) for shape in shapes]
    tensors[1] = tensors[1].to(memory_format=torch.channels_last)
    tensors[4] = tensors[4].t()
    bucket = bucket_of(*tensors)
    return bucket, torch.randn(bucket.numel)


def test_it_is_what_subtracting_writes():
    bucket, flat = random_bucket()
    difference = bucket.difference(flat)
    made = difference.write_to(bucket.empty())
    assert torch.equal(made, bucket.subtract_from(flat, bucket.empty()))
    assert made.count_nonzero() > 0


@pytest.mark.parametrize(("start", "stop"), [(0, 5), (3, 6), (5, 53), (52, 54), (54, 75), (0, 75)])
def test_each_part_is_that_of_the_whole(start, stop):
    bucket, flat = random_bucket()
    difference = bucket.difference(flat)
    whole = difference.write_to(bucket.empty())
    assert torch.equal(difference.write_to(torch.empty(stop - start), start), whole[start:stop])
    cuts = [(begin, end) for begin, end, _, _ in difference.parts(start, stop)]
    assert cuts[0][0] == start
    assert cuts[-1][1] == stop
    assert [end for _, end in cuts[:-1]] == [begin for begin, _ in cuts[1:]]


def test_nothing_is_left_where_it_takes_more_than_to_subtract():
    assert bucket_of(torch.zeros(4)[::2]).difference(torch.zeros(2)) is None  # its memory has gaps
    assert bucket_of(torch.zeros(2).bfloat16()).difference(torch.zeros(2)) is None  # rounded first


def test_nothing_is_left_where_the_memory_has_been_arranged_anew():
    tensor = torch.nn.Parameter(torch.arange(24.0).view(2, 3, 2, 2))
    bucket = bucket_of(tensor)
    flat = bucket.gather(bucket.empty())
    tensor.data = tensor.data.to(memory_format=torch.channels_last)
    assert bucket.difference(flat) is None
    assert bucket.subtract_from(flat, bucket.empty()).count_nonzero() == 0


def test_it_sees_the_tensors_as_they_are_when_it_is_made():
    tensor = torch.zeros(3, requires_grad=True)
    difference = bucket_of(tensor).difference(torch.ones(3))
    with torch.no_grad():
        tensor.add_(2)
    made = difference.write_to(torch.empty(3))
    assert made.tolist() == [-1, -1, -1]
    assert not made.requires_grad


@pytest.mark.parametrize(("start", "stop"), [(0, 5), (3, 6), (5, 53), (52, 54), (54, 75), (0, 75), (9, 9)])
def test_a_part_of_it_is_a_difference_itself(start, stop):
    bucket, flat = random_bucket()
    difference = bucket.difference(flat)
    part = difference.part(start, stop - start)
    expected = difference.write_to(torch.empty(stop - start), start)
    assert torch.equal(part.write_to(torch.empty(stop - start)), expected)


def test_runs_of_whole_blocks_cover_it_once():
    sizes = (100, 20_000, 50, 60, 40_000, 7)
    tensors = [torch.randn(size) for size in sizes]
    bucket = bucket_of(*tensors)
    flat = torch.randn(bucket.numel)
    runs = list(bucket.difference(flat).runs(64))
    assert [begin for begin, *_ in runs] == [0, *(end for _, end, *_ in runs[:-1])]
    assert all(end % 64 == 0 for _, end, *_ in runs[:-1])
    assert sum(other is not None for *_, other in runs) == 2  # the long ones are not made
    made = [one if other is None else one - other for _, _, one, other in runs]
    assert torch.equal(torch.cat(made), bucket.subtract_from(flat, bucket.empty()))
