"""Extremes and sums of every segment at once."""

from __future__ import annotations

import pytest
import torch

from relaxcomm.kernels.dispatch import implementation
from relaxcomm.kernels.segment_statistics import offsets_of, segment_of_entries, segment_statistics
from relaxcomm.tensors.segments import Segments
from tests.kernels.comparing import entries
from tests.kernels.interpreter import DEVICE


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
