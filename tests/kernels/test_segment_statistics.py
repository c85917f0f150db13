"""Extremes bit for bit, sums but for their order, of every segment at once."""

from __future__ import annotations

import pytest
import torch

from relaxcomm.kernels.dispatch import implementation
from relaxcomm.kernels.segment_statistics import offsets_of, segment_of_entries, segment_statistics
from relaxcomm.tensors.segments import Segments
from tests.kernels.comparing import DTYPES, KINDS, SIZES, both, entries, same_bits
from tests.kernels.interpreter import DEVICE

BLOCKS = (1, 7, 64, 1000, 5000)
TENSORS = ((5,), (1, 1, 1), (3, 5000, 1, 17), (4096, 4097))


def check_same(found, expected):
    assert same_bits(found.lows, expected.lows)
    assert same_bits(found.highs, expected.highs)
    for name in ("sizes", "squares", "numbers"):
        one, other = getattr(found, name), getattr(expected, name)
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-300, equal_nan=True)


@pytest.mark.parametrize("numel", SIZES)
@pytest.mark.parametrize("block", BLOCKS)
def test_both_implementations_see_the_same_of_blocks(block, numel, kernels):
    check_same(*both(segment_statistics, entries(numel), Segments(numel, block)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", TENSORS)
def test_both_see_the_same_of_tensors(sizes, dtype, kernels):
    numel = sum(sizes)
    check_same(*both(segment_statistics, entries(numel, dtype), Segments(numel, None, sizes)))


@pytest.mark.parametrize("kind", KINDS)
def test_both_see_the_same_of_all_kinds_of_entries(kind, kernels):
    for segments in (Segments(1025, 100), Segments(1025, None, (25, 1000))):
        check_same(*both(segment_statistics, entries(1025, kind=kind), segments))


@pytest.mark.parametrize("kind", ["nan", "infinite"])
def test_only_segments_that_are_not_finite_have_no_extremes(kind):
    x = entries(1000, kind=kind)
    with implementation("torch"):
        found = segment_statistics(x, Segments(1000, 10))
    spoilt = ~torch.isfinite(x).view(-1, 10).all(1)
    assert torch.equal(found.lows.isnan(), spoilt)
    assert torch.equal(found.highs.isnan(), spoilt)


@pytest.mark.parametrize("segments", [Segments(103, 10), Segments(103, None, (1, 100, 2))])
def test_each_segment_is_looked_at_alone(segments):
    x = entries(103)
    with implementation("torch"):
        found = segment_statistics(x, segments)
    own = segment_of_entries(segments, DEVICE)
    for index in range(segments.count):
        part = x[own == index]
        assert (found.lows[index], found.highs[index]) == (part.min(), part.max())
        assert found.numbers[index] == part.numel()
        torch.testing.assert_close(found.sizes[index], part.double().abs().sum())
        torch.testing.assert_close(found.squares[index], part.double().square().sum())
    assert offsets_of(segments, DEVICE)[-1] == 103
