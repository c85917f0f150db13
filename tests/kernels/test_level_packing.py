"""Codes bit for bit: Triton's, torch's, and those that compressors make on a CPU."""

from __future__ import annotations

import pytest
import torch

from relaxcomm.kernels import level_packing
from relaxcomm.kernels.code_lanes import fraction_bits
from relaxcomm.kernels.dispatch import implementation
from relaxcomm.kernels.level_packing import pack_levels, pack_nonnegative
from relaxcomm.kernels.philox import key_of
from relaxcomm.kernels.segment_scales import scales_of
from relaxcomm.kernels.segment_statistics import segment_of_entries, segment_statistics
from relaxcomm.tensors.bit_packing import pack_codes, unpack_codes
from relaxcomm.tensors.segments import Segments
from tests.kernels.comparing import DTYPES, KINDS, SIZES, both, entries
from tests.kernels.interpreter import DEVICE

CODES = (2, 3, 4, 16, 31, 256)


def spread(x, segments, num_codes, *, around_zero=False):
    """Scales that span the segments."""
    with implementation("torch"):
        found = segment_statistics(x, segments)
    if around_zero:
        return scales_of(torch.maximum(found.highs, -found.lows) * 2 / (num_codes - 1), None, num_codes)
    return scales_of((found.highs - found.lows) / (num_codes - 1), found.lows, num_codes)


@pytest.mark.every_other("numel", "num_codes", "key")
@pytest.mark.parametrize("key", [None, key_of(2**40 + 5)], ids=["nearest", "drawn"])
@pytest.mark.parametrize("num_codes", CODES)
@pytest.mark.parametrize("numel", [1, 31, 1025])
def test_both_implementations_pack_the_same(numel, num_codes, key, kernels):
    x = entries(numel)
    for segments in (Segments(numel, 100), Segments(numel, None, (1, numel - 1) if numel > 1 else (1,))):
        scales = spread(x, segments, num_codes)
        found, expected = both(pack_levels, x, scales, segments, num_codes, key)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("key", [None, key_of(7)], ids=["nearest", "drawn"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_codes", [3, 15, 255])
def test_both_pack_the_same_around_zero(num_codes, dtype, key, kernels):
    x, segments = entries(4097, dtype), Segments(4097, 512)
    scales = spread(x, segments, num_codes, around_zero=True)
    found, expected = both(pack_levels, x, scales, segments, num_codes, key)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("key", [None, key_of(7)], ids=["nearest", "drawn"])
@pytest.mark.parametrize("kind", KINDS)
def test_both_pack_the_same_of_all_kinds_of_entries(kind, key, kernels):
    x, segments = entries(1025, kind=kind), Segments(1025, 64)
    for num_codes, around_zero in ((256, False), (255, True)):
        scales = spread(x, segments, num_codes, around_zero=around_zero)
        found, expected = both(pack_levels, x, scales, segments, num_codes, key)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("block", [1, 3, 4096, 5000, 10**9])
def test_both_pack_the_same_in_blocks_of_any_size(block, kernels):
    x, segments = entries(9001), Segments(9001, block)
    scales = spread(x, segments, 256)
    found, expected = both(pack_levels, x, scales, segments, 256, key_of(1))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("numel", SIZES)
def test_both_pack_the_same_signs(numel, dtype, kernels):
    for kind in ("normal", "nan", "zero"):
        x = entries(numel, dtype, kind)
        found, expected = both(pack_nonnegative, x, Segments(len(x), 100))
        assert torch.equal(found, expected)
        assert torch.equal(unpack_codes(expected, numel, 2).bool(), x >= 0)


@pytest.mark.parametrize("num_codes", CODES)
def test_drawn_codes_lie_beside_the_place_and_meet_it_on_average(num_codes):
    """Over many keys the mean of an entry's codes comes to its place."""
    places = torch.tensor([0.0, 0.25, 0.9, 1.0], device=DEVICE) * (num_codes - 1)
    x = places.repeat(25)
    one, zero = torch.ones(1, device=DEVICE), torch.zeros(1, device=DEVICE)
    total = torch.zeros(100, device=DEVICE)
    with implementation("torch"):
        for number in range(40):
            packed = pack_levels(
                x, scales_of(one, zero, num_codes), Segments(100, 100), num_codes, key_of(number)
            )
            codes = unpack_codes(packed, 100, num_codes).float()
            assert ((codes - x).abs() < 1).all()
            total += codes
    mean = total.view(25, 4).mean(0) / 40
    assert (mean - places).abs().max() < 0.06
    assert torch.equal(mean[::3], places[::3])


def test_a_place_below_the_last_bit_of_the_fixed_point_is_met_on_average(monkeypatch):
    """By the words' upper bits: with four bits behind the point, 1/64 would never be left otherwise."""
    monkeypatch.setattr(level_packing, "fraction_bits", lambda num_codes, has_lows: 4)
    x, whole = torch.full((1 << 16,), 1 / 64, device=DEVICE), Segments(1 << 16, 1 << 16)
    one, zero = torch.ones(1, device=DEVICE), torch.zeros(1, device=DEVICE)
    with implementation("torch"):
        drawn = pack_levels(x, scales_of(one, zero, 256), whole, 256, key_of(1)).sum()
    assert drawn.item() == pytest.approx(1 << 10, rel=0.15)


def test_what_a_gpu_floors_is_no_subnormal_number():
    """It takes those for 0: a place is one in fixed point only where it is 0."""
    bits = [fraction_bits(num, has_lows=has_lows) for num in range(2, 257) for has_lows in (False, True)]
    least = torch.finfo(torch.float32)
    assert least.smallest_normal * least.eps * 2.0 ** min(bits) >= least.smallest_normal


def test_nearest_codes_are_rounded_to_even():
    x = torch.tensor([0.5, 1.5, 2.5, 2.4], device=DEVICE)
    one, zero = torch.ones(1, device=DEVICE), torch.zeros(1, device=DEVICE)
    with implementation("torch"):
        packed = pack_levels(x, scales_of(one, zero, 4), Segments(4, 4), 4, None)
    assert torch.equal(packed, pack_codes(torch.tensor([0, 2, 2, 2], dtype=torch.uint8, device=DEVICE), 4))


def test_the_table_tells_segments_apart():
    segments = Segments(6, None, (1, 3, 2))
    own = segment_of_entries(segments, DEVICE)
    assert own.tolist() == [0, 1, 1, 1, 2, 2]
