"""The kernel of `magnitude_statistics`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from relaxcomm.kernels.compiled.triton_feedback import corrected
from relaxcomm.kernels.magnitudes import (
    BIN_SHIFT,
    INFINITY,
    MANTISSA_BITS,
    NOT_A_NUMBER,
    NUM_EXPONENTS,
    ROW,
    TILE,
    counting_stride,
)

_MOST_PARTS = 1024
_BESIDE = 4  # entries that a thread reads at once, and adds up by itself


def launch(
    tensor: Tensor, residual: Tensor | None, decay: float, out: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums, entries that are not finite, histogram and largest keys."""
    numel = tensor.numel()
    tiles = -(-numel // TILE)
    tiles_each = -(-tiles // _MOST_PARTS)
    parts = -(-tiles // tiles_each)
    sums = torch.empty(parts, 2, dtype=torch.float64, device=tensor.device)
    not_finite = torch.empty(parts, dtype=torch.int32, device=tensor.device)
    histogram = torch.zeros(1 << MANTISSA_BITS, NUM_EXPONENTS, dtype=torch.int32, device=tensor.device)
    largest = torch.empty(-(-numel // ROW), dtype=torch.int32, device=tensor.device)
    _statistics[(parts,)](
        tensor,
        tensor if residual is None else residual,
        tensor if out is None else out,
        sums,
        not_finite,
        histogram,
        largest,
        numel,
        tiles_each,
        counting_stride(numel).bit_length() - 1,
        float(decay),
        HAS_RESIDUAL=residual is not None,
        ROWS=TILE // ROW,
        ROW=ROW,
        BESIDE=_BESIDE,
        SHIFT=BIN_SHIFT,
        MANTISSA_BITS=MANTISSA_BITS,
        EXPONENTS=NUM_EXPONENTS,
        INFINITY=INFINITY,
        NOT_A_NUMBER=NOT_A_NUMBER,
        num_warps=8,
        enable_fp_fusion=False,  # rounded as the same arithmetic in torch
    )
    return sums, not_finite, histogram, largest


@triton.jit
def magnitude_key(
    value,  # float32
    NOT_A_NUMBER: tl.constexpr,
):
    """As `magnitude_keys`."""
    key = value.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.where(value == value, key, NOT_A_NUMBER)


@triton.jit
def _beside(value, ROWS: tl.constexpr, ROW: tl.constexpr, BESIDE: tl.constexpr):
    """Sums of neighbours, `[ROWS, ROW / BESIDE]`: those of rows would pass between threads in each tile."""
    return tl.sum(tl.reshape(value, (ROWS, ROW // BESIDE, BESIDE)), axis=2)


@triton.jit
def _counted_row(group, stride_bits):
    """As `counted_entries`, of the numbers of groups."""
    group = group.to(tl.int64)
    drawn = (group * 2654435761 & 4294967295) >> 16
    return (group << stride_bits) + (drawn & ((1 << stride_bits) - 1))


@triton.jit(do_not_specialize=["stride_bits"])
def _statistics(
    tensor_ptr,
    residual_ptr,
    out_ptr,
    sums_ptr,
    not_finite_ptr,
    histogram_ptr,
    largest_ptr,
    numel,
    tiles_each,
    stride_bits,
    decay,
    HAS_RESIDUAL: tl.constexpr,
    ROWS: tl.constexpr,
    ROW: tl.constexpr,
    BESIDE: tl.constexpr,
    SHIFT: tl.constexpr,
    MANTISSA_BITS: tl.constexpr,
    EXPONENTS: tl.constexpr,
    INFINITY: tl.constexpr,
    NOT_A_NUMBER: tl.constexpr,
):
    """A program a part: `tiles_each` tiles of `ROWS` rows."""
    part = tl.program_id(0)
    rows = tl.arange(0, ROWS)
    place = rows[:, None] * ROW + tl.arange(0, ROW)[None, :]
    total = tl.zeros((ROWS, ROW // BESIDE), dtype=tl.float64)
    squares = tl.zeros((ROWS, ROW // BESIDE), dtype=tl.float64)
    spoilt = tl.zeros((ROWS, ROW // BESIDE), dtype=tl.int32)
    for step in range(tiles_each):
        tile = part.to(tl.int64) * tiles_each + step
        start = tile * (ROWS * ROW)
        left = tl.minimum(numel - start, ROWS * ROW).to(tl.int32)
        inside = place < left
        entry = start + place
        is_whole = left == ROWS * ROW
        wide = corrected(tensor_ptr, residual_ptr, out_ptr, entry, inside, is_whole, decay, HAS_RESIDUAL)
        key = magnitude_key(wide, NOT_A_NUMBER)
        exact = wide.to(tl.float64)
        total += _beside(exact, ROWS, ROW, BESIDE)
        squares += _beside(exact * exact, ROWS, ROW, BESIDE)
        spoilt += _beside((key >= INFINITY).to(tl.int32), ROWS, ROW, BESIDE)
        tl.store(largest_ptr + tile * ROWS + rows, tl.max(key, axis=1), mask=rows * ROW < left)
    tl.store(sums_ptr + 2 * part, tl.sum(total))
    tl.store(sums_ptr + 2 * part + 1, tl.sum(squares))
    tl.store(not_finite_ptr + part, tl.sum(spoilt))
    tl.debug_barrier()  # other threads read what one has written
    first = part.to(tl.int64) * tiles_each * ROWS
    last = tl.minimum(first + tiles_each * ROWS, (numel - 1) // ROW + 1)
    seen_ptr = out_ptr if HAS_RESIDUAL else tensor_ptr
    least = tl.zeros((ROWS, ROW), dtype=tl.int32)
    for group in range(first >> stride_bits, ((last - 1) >> stride_bits) + 1, ROWS):
        row = _counted_row(group + rows, stride_bits)[:, None]
        entry = row * ROW + tl.arange(0, ROW)[None, :]
        inside = (row >= first) & (row < last) & (entry < numel)
        seen = tl.load(seen_ptr + entry, mask=inside, other=0.0).to(tensor_ptr.dtype.element_ty)
        bins = magnitude_key(seen.to(tl.float32), NOT_A_NUMBER) >> SHIFT
        slot = (bins & ((1 << MANTISSA_BITS) - 1)) * EXPONENTS + (bins >> MANTISSA_BITS)
        tl.atomic_add(histogram_ptr + slot, 1, mask=inside & (bins > 0), sem="relaxed")
        least += (inside & (bins == 0)).to(tl.int32)  # which may be most
    tl.atomic_add(histogram_ptr, tl.sum(least), sem="relaxed")
