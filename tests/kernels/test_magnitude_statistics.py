"""The statistics of a corrected tensor: counts bit for bit, sums but for their order."""

from __future__ import annotations

import pytest
import torch

from relaxcomm.kernels import magnitudes
from relaxcomm.kernels.dispatch import implementation
from relaxcomm.kernels.magnitude_statistics import magnitude_statistics
from relaxcomm.kernels.magnitudes import BIN_SHIFT, ROW, counted_entries, counting_stride, magnitude_keys
from tests.kernels.comparing import DTYPES, KINDS, SIZES, both, entries, same_bits
from tests.kernels.interpreter import DEVICE


def corrected(tensor, residual, decay, out):
    return out, magnitude_statistics(tensor, residual, decay, out)


def check_same(found, expected):
    torch.testing.assert_close(
        found.sums.sum(0), expected.sums.sum(0), rtol=1e-12, atol=1e-12, equal_nan=True
    )
    assert torch.equal(found.num_not_finite.sum(), expected.num_not_finite.sum())
    assert torch.equal(found.histogram, expected.histogram)
    assert torch.equal(found.largest, expected.largest)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("numel", SIZES)
def test_both_implementations_see_the_same(numel, dtype, kernels):
    residual = entries(numel, seed=1)
    (left, found), (right, expected) = both(
        corrected, entries(numel, dtype), residual, 1.0, torch.empty_like(residual)
    )
    assert same_bits(left, right)
    check_same(found, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_of_all_kinds_of_entries(kind, kernels):
    check_same(*both(magnitude_statistics, entries(1025, kind=kind)))


def test_a_decay_may_be_rounded_once_or_twice(kernels):
    """torch multiplies and adds in one rounding where it can."""
    residual = entries(1025, seed=1)
    (left, _), (right, _) = both(corrected, entries(1025), residual, 0.9, torch.empty_like(residual))
    torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("stride", [2, 8])
def test_rows_are_drawn_alike(stride, kernels, monkeypatch):
    x = entries(30 * magnitudes.TILE + 5)
    x[::3] = 0  # which are added up before they are counted
    monkeypatch.setattr(magnitudes, "_MOST_COUNTED", x.numel() // stride - 1)
    assert counting_stride(x.numel()) == stride
    found, expected = both(magnitude_statistics, x)
    check_same(found, expected)
    assert abs(expected.histogram.sum() - x.numel() / stride) <= ROW
    assert expected.histogram[0, 0] > x.numel() / (4 * stride)


def test_every_row_of_a_group_is_drawn_at_some_time(monkeypatch):
    monkeypatch.setattr(magnitudes, "_MOST_COUNTED", ROW * 64)
    numel = ROW * 256
    stride = counting_stride(numel)
    rows = counted_entries(numel, DEVICE).view(-1, ROW)[:, 0]
    groups = rows.view(-1, stride)
    assert stride == 4
    assert torch.equal(groups.sum(1), torch.ones_like(groups[:, 0]))
    assert (groups.sum(0) > 0).all()


def test_sums_and_histogram_are_those_of_numpy():
    x = entries(5000)
    with implementation("torch"):
        found = magnitude_statistics(x)
    exact = x.double()
    torch.testing.assert_close(found.sums[0], torch.stack((exact.sum(), exact.square().sum())))
    for size in (0.1, 1.0, 2.5):
        edge = magnitude_keys(torch.tensor([size], device=DEVICE)).item() >> BIN_SHIFT
        low = torch.tensor(edge << BIN_SHIFT, dtype=torch.int32, device=DEVICE).view(torch.float32)
        assert found.histogram.t().flatten()[edge:].sum() == (x.abs() >= low).sum()
        assert 0 < size - low < size * 2.0**-magnitudes.MANTISSA_BITS or size == low
    assert found.largest.view(torch.float32)[1] == x[ROW : 2 * ROW].abs().max()


def test_an_entry_beyond_float32_squares_counts():
    """Squares of 1e30 and of 1e-30 leave a float32."""
    for size in (1e30, 1e-30):
        with implementation("torch"):
            found = magnitude_statistics(size * entries(1000))
        std = (found.sums[0, 1] / 1000).sqrt()
        assert 0.9 * size < std < 1.1 * size
