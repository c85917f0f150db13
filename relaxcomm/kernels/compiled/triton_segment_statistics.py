"""The kernels of `segment_statistics`: one of short blocks, one of segments of any sizes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from relaxcomm.kernels.code_lanes import LONGEST_ROW
from relaxcomm.kernels.compiled.triton_feedback import corrected
from relaxcomm.kernels.launch_sizes import next_power_of_two
from relaxcomm.tensors.segments import Segments

_TILE = 2048
_BLOCKS = 4096  # entries of a program that reads whole blocks
_MOST_PROGRAMS = 1 << 16


def launch(
    tensor: Tensor,
    segments: Segments,
    offsets: Tensor,
    residual: Tensor | None,
    decay: float,
    out: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Least and largest entry that is a number, and the sums of sizes and squares."""
    has_residual = residual is not None
    read = (tensor, residual, out, decay) if has_residual else (tensor, tensor, tensor, decay)
    if segments.block_size is not None and segments.block_size <= LONGEST_ROW:
        return _of_blocks(tensor, read, has_residual, segments.count, segments.block_size)
    longest = segments.block_size or max(segments.sizes)
    parts = max(1, min(-(-longest // _TILE), _MOST_PROGRAMS // segments.count))
    extremes, sums = _empty(tensor, segments.count * parts)
    _parts[(segments.count * parts,)](
        *(*read, offsets, *extremes, *sums, parts),
        HAS_RESIDUAL=has_residual,
        TILE=_TILE,
        num_warps=8,
        enable_fp_fusion=False,
    )
    lows, highs = (one.view(segments.count, parts) for one in extremes)
    sizes, squares = (one.view(segments.count, parts).sum(1) for one in sums)
    return lows.amin(1), highs.amax(1), sizes, squares


def _of_blocks(
    tensor: Tensor, read: tuple[object, ...], has_residual: bool, count: int, block_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    size = next_power_of_two(block_size)
    rows = max(1, _BLOCKS // size)
    (lows, highs), (sizes, squares) = _empty(tensor, count)
    _blocks[(-(-count // rows),)](
        *(*read, lows, highs, sizes, squares, tensor.numel(), count),
        HAS_RESIDUAL=has_residual,
        BLOCK=block_size,
        SIZE=size,
        ROWS=rows,
        num_warps=8,
        enable_fp_fusion=False,
    )
    return lows, highs, sizes, squares


def _empty(tensor: Tensor, count: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    low, size = (
        torch.empty(count, dtype=dtype, device=tensor.device) for dtype in (torch.float32, torch.float64)
    )
    return (low, torch.empty_like(low)), (size, torch.empty_like(size))


@triton.jit
def _low(value, inside):
    """What a minimum is taken of: NaN is told by the sums."""
    return tl.where(inside & (value == value), value, float("inf"))


@triton.jit(do_not_specialize=["decay"])
def _blocks(
    tensor_ptr,
    residual_ptr,
    out_ptr,
    decay,
    lows_ptr,
    highs_ptr,
    sizes_ptr,
    squares_ptr,
    numel,
    count,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """A program some blocks."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, SIZE)
    entry = row[:, None] * BLOCK + column[None, :]
    inside = (column[None, :] < BLOCK) & (entry < numel)
    value = corrected(tensor_ptr, residual_ptr, out_ptr, entry, inside, decay, HAS_RESIDUAL)
    exact = value.to(tl.float64)
    there = row < count
    tl.store(lows_ptr + row, tl.min(_low(value, inside), axis=1), mask=there)
    tl.store(highs_ptr + row, -tl.min(_low(-value, inside), axis=1), mask=there)
    tl.store(sizes_ptr + row, tl.sum(tl.abs(exact), axis=1), mask=there)
    tl.store(squares_ptr + row, tl.sum(exact * exact, axis=1), mask=there)


@triton.jit(do_not_specialize=["parts", "decay"])
def _parts(
    tensor_ptr,
    residual_ptr,
    out_ptr,
    decay,
    offsets_ptr,
    lows_ptr,
    highs_ptr,
    sizes_ptr,
    squares_ptr,
    parts,
    HAS_RESIDUAL: tl.constexpr,
    TILE: tl.constexpr,
):
    """Every so many-th tile of a segment."""
    out = tl.program_id(0)
    segment, part = out // parts, out % parts
    start, stop = tl.load(offsets_ptr + segment), tl.load(offsets_ptr + segment + 1)
    place = tl.arange(0, TILE)
    low = tl.full((TILE,), float("inf"), dtype=tl.float32)
    negated_high = tl.full((TILE,), float("inf"), dtype=tl.float32)
    size = tl.zeros((TILE,), dtype=tl.float64)
    squares = tl.zeros((TILE,), dtype=tl.float64)
    for tile in range(part, tl.cdiv(stop - start, TILE), parts):
        entry = start + tile * TILE + place
        inside = entry < stop
        value = corrected(tensor_ptr, residual_ptr, out_ptr, entry, inside, decay, HAS_RESIDUAL)
        exact = value.to(tl.float64)
        low = tl.minimum(low, _low(value, inside))
        negated_high = tl.minimum(negated_high, _low(-value, inside))
        size += tl.abs(exact)
        squares += exact * exact
    tl.store(lows_ptr + out, tl.min(low, axis=0))
    tl.store(highs_ptr + out, -tl.min(negated_high, axis=0))
    tl.store(sizes_ptr + out, tl.sum(size, axis=0))
    tl.store(squares_ptr + out, tl.sum(squares, axis=0))
