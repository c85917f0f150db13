"""Sums of messages: of levels to the rounding of a float32 sum, of entries exactly and in one order."""

from __future__ import annotations

import pytest
import torch

from relaxcomm.kernels.dispatch import implementation
from relaxcomm.kernels.message_sums import add_entries, stacked, sum_levels
from relaxcomm.tensors.bit_packing import pack_codes, unpack_codes
from relaxcomm.tensors.segments import Segments
from tests.kernels.comparing import both
from tests.kernels.interpreter import DEVICE, HAS_GPU

CODES = (2, 3, 4, 16, 31, 256)
WORKERS = 3


def messages(numel, num_codes, segments):
    """Codes, steps and lows of some workers, on the device."""
    draw = torch.Generator().manual_seed(numel)
    codes = torch.randint(num_codes, (WORKERS, numel), generator=draw, dtype=torch.uint8)
    packed = torch.stack([pack_codes(row, num_codes) for row in codes])
    steps, lows = torch.randn(2, WORKERS, segments.count, generator=draw)
    return [one.to(DEVICE) for one in (packed, steps, lows, torch.rand(WORKERS, generator=draw))]


@pytest.mark.every_other("numel", "num_codes")
@pytest.mark.parametrize("num_codes", CODES)
@pytest.mark.parametrize("numel", [1, 1025])
def test_both_implementations_add_the_same(numel, num_codes, kernels):
    """One worker bit for bit; several but for the order in which torch adds them up."""
    for segments in (Segments(numel, 100), Segments(numel, None, (1, numel - 1) if numel > 1 else (1,))):
        packed, steps, lows, weights = messages(numel, num_codes, segments)
        for offset in (lows, None):
            arguments = (packed, steps, offset, weights, segments, num_codes)
            torch.testing.assert_close(*both(sum_levels, *arguments), rtol=1e-6, atol=1e-6 * num_codes)
            one = [None if part is None else part[:1] for part in arguments[:4]]
            assert torch.equal(*both(sum_levels, *one, segments, num_codes))


def test_rows_of_a_gathered_message_are_read_where_they_are(kernels):
    segments = Segments(1025, 64)
    packed, steps, lows, weights = messages(1025, 256, segments)
    gathered = torch.cat([packed, packed], dim=1)
    assert not gathered[:, :1025].is_contiguous()
    _, expected = both(sum_levels, packed, steps, lows, weights, segments, 256)
    with implementation("triton"):
        found = sum_levels(gathered[:, :1025], steps, lows, weights, segments, 256)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-4)


@pytest.mark.skipif(HAS_GPU, reason="takes 16 GiB of a GPU; on the host they are the holes of a file")
def test_rows_lie_further_apart_than_an_int32_counts(tmp_path, kernels):
    distance = 2**31 - 1  # twice this, in an int32, is -2
    memory = torch.from_file(str(tmp_path / "gathered"), shared=True, size=2 * distance + 4)
    steps, lows = (stacked([memory[at + row * distance :][:1] for row in range(WORKERS)]) for at in (2, 3))
    steps.copy_(torch.tensor([[1.0], [2.0], [4.0]]))
    lows.copy_(torch.tensor([[8.0], [16.0], [32.0]]))
    codes = torch.ones(WORKERS, 2, dtype=torch.uint8)
    with implementation("triton"):
        found = sum_levels(codes, steps, lows, torch.ones(WORKERS), Segments(2, 2), 256)
    assert found.tolist() == [63.0, 63.0]


def test_a_segment_that_is_not_finite_stays_so(kernels):
    segments = Segments(10, 5)
    packed, steps, lows, weights = messages(10, 16, segments)
    lows[1, 0] = torch.nan
    for found in both(sum_levels, packed, steps, lows, weights, segments, 16):
        assert found.isnan().tolist() == [True] * 5 + [False] * 5


@pytest.mark.parametrize("num_codes", [2, 3, 5, 16, 200, 256])
def test_rows_are_unpacked_as_one_by_one(num_codes):
    packed, *_ = messages(1025, num_codes, Segments(1025, 64))
    expected = [unpack_codes(row, 1025, num_codes) for row in packed]
    assert torch.equal(unpack_codes(packed, 1025, num_codes), torch.stack(expected))


def test_tensors_at_even_distances_are_not_copied():
    gathered = torch.arange(40, device=DEVICE).view(4, 10)
    for rows in ([gathered[0, 2:5]], [row[2:5] for row in gathered], [gathered[1], gathered[3]]):
        together = stacked(rows)
        assert torch.equal(together, torch.stack(rows))
        assert together.untyped_storage().data_ptr() == gathered.untyped_storage().data_ptr()
    for rows in (
        [gathered[0], gathered[2], gathered[3]],
        [gathered[2], gathered[0]],
        [gathered[0], torch.arange(10, device=DEVICE)],
        [gathered[:, 0], gathered.t().contiguous()[1]],
    ):
        assert torch.equal(stacked(rows), torch.stack(rows))


def test_unused_entries_add_nothing_and_places_that_come_twice_add_up():
    total = torch.ones(6, device=DEVICE)
    values = torch.tensor([[1.0, 2.0, torch.nan], [4.0, torch.inf, 9.0]], device=DEVICE)
    indices = torch.tensor([[5, 0, 0], [5, 0, 0]], dtype=torch.int32, device=DEVICE)
    counts = torch.tensor([[2], [1]], dtype=torch.int32, device=DEVICE)
    add_entries(total, values, indices, counts, torch.tensor([0.5, 0.25], device=DEVICE))
    assert total.tolist() == [2.0, 1.0, 1.0, 1.0, 1.0, 2.5]
