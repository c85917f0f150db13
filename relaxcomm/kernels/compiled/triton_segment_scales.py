"""The kernels of `segment_scales`: one reads short blocks and makes their scales, one makes those of what has
been read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from relaxcomm.kernels.code_lanes import LONGEST_ROW
from relaxcomm.kernels.compiled import triton_segment_statistics
from relaxcomm.kernels.compiled.triton_feedback import corrected
from relaxcomm.kernels.compiled.triton_lanes import shard_of
from relaxcomm.kernels.compiled.triton_levels import inverse_steps, levels_between, origins
from relaxcomm.kernels.compiled.triton_segment_statistics import bounds_of, number_or_infinity
from relaxcomm.kernels.launch_sizes import next_power_of_two
from relaxcomm.kernels.levels import moves_to_zero
from relaxcomm.kernels.segment_statistics import ScaleRule
from relaxcomm.tensors.segments import Segments

_BLOCKS = 4096  # entries of a program that reads whole blocks
_TOGETHER = 1024  # parts that a program adds up at once


def launch(
    tensor: Tensor,
    segments: Segments,
    rule: ScaleRule,
    residual: Tensor | None,
    decay: float,
    out: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None, tuple[Tensor, Tensor] | None]:
    """Steps, their inverses, the lowest levels and origins."""
    count, block = segments.count, segments.block_size or 0
    made = torch.empty(2 if rule.symmetric else 5, count, dtype=torch.float32, device=tensor.device)
    constants = {
        "KIND": rule.kind,
        "FACTOR": rule.factor,
        "IS_SYMMETRIC": rule.symmetric,
        "IS_MOVED": moves_to_zero(rule.num_codes, symmetric=rule.symmetric),
        "LAST": rule.num_codes - 1,
        "enable_fp_fusion": False,  # rounded as the same arithmetic in torch
    }
    if 0 < block <= LONGEST_ROW:
        columns = next_power_of_two(block)
        rows, shard = max(1, _BLOCKS // columns), segments.shards[0]
        _blocks[(-(-shard.count // rows), len(segments.shards))](
            tensor,
            tensor if residual is None else residual,
            tensor if out is None else out,
            *(decay, made, segments.numel, shard.numel, count),
            **constants,
            BLOCK=block,
            IS_SHARDED=segments.shard_size is not None,
            HAS_RESIDUAL=residual is not None,
            ROWS=rows,
            COLUMNS=columns,
            num_warps=8,
        )
    else:
        found, parts, offsets = triton_segment_statistics.launch(tensor, segments, residual, decay, out)
        columns = min(next_power_of_two(parts), _TOGETHER)
        rows = _TOGETHER // columns
        _scales[(-(-count // rows),)](
            *(*found, made if offsets is None else offsets, made, segments.numel, count, parts),
            **constants,
            BLOCK=block if offsets is None else 0,
            ROWS=rows,
            COLUMNS=columns,
            num_warps=4,
        )
    steps, inverses, *others = made.unbind()
    if not others:
        return steps, inverses, None, None
    lows, shifts, zeros = others
    return steps, inverses, lows, (shifts, zeros)


@triton.jit
def _store_scales(
    out_ptr,
    row,
    there,
    count,
    low,
    high,
    size,
    squares,
    number,
    KIND: tl.constexpr,
    FACTOR: tl.constexpr,
    IS_SYMMETRIC: tl.constexpr,
    IS_MOVED: tl.constexpr,
    LAST: tl.constexpr,
):
    """Those of some segments, as `ScaleRule.of` and `scales_of` make them."""
    number = number.to(tl.float64)
    spoilt = squares - squares != 0
    low = tl.where(spoilt, float("nan"), low)
    high = tl.where(spoilt, float("nan"), high)
    if KIND == "range":
        step, inverse, low = levels_between(low, high, IS_SYMMETRIC, IS_MOVED, LAST)
    else:
        if KIND == "mean":
            step = (size / number * FACTOR).to(tl.float32)
        elif KIND == "norm":
            step = (tl.sqrt(squares) * FACTOR).to(tl.float32)
        else:
            clip = (tl.sqrt(squares / number) * FACTOR).to(tl.float32)
            largest = tl.maximum(high, -low)
            step = tl.where(spoilt, largest, tl.minimum(largest, clip))
        inverse = inverse_steps(step)
    tl.store(out_ptr + row, step, mask=there)
    tl.store(out_ptr + count + row, inverse, mask=there)
    if not IS_SYMMETRIC:
        shift, zero = origins(step, inverse, low, LAST)
        tl.store(out_ptr + 2 * count + row, low, mask=there)
        tl.store(out_ptr + 3 * count + row, shift, mask=there)
        tl.store(out_ptr + 4 * count + row, zero, mask=there)


@triton.jit(do_not_specialize=["decay", "count"])
def _blocks(
    tensor_ptr,
    residual_ptr,
    corrected_ptr,
    decay,
    out_ptr,
    numel,
    size,
    count,
    BLOCK: tl.constexpr,
    KIND: tl.constexpr,
    FACTOR: tl.constexpr,
    IS_SYMMETRIC: tl.constexpr,
    IS_MOVED: tl.constexpr,
    LAST: tl.constexpr,
    IS_SHARDED: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A program some blocks of a shard, each of which it reads as a whole."""
    count = count.to(tl.int64)
    if IS_SHARDED:
        begin, _, first, numel, _, _ = shard_of(numel, size, 0, 0, 0, 0, BLOCK)
        tensor_ptr += begin
        residual_ptr += begin
        corrected_ptr += begin
        out_ptr += first
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    entry = row[:, None] * BLOCK + column[None, :]
    inside = (column[None, :] < BLOCK) & (entry < numel)
    is_whole = (COLUMNS == BLOCK) & ((tl.program_id(0).to(tl.int64) + 1) * (ROWS * BLOCK) <= numel)
    value = corrected(tensor_ptr, residual_ptr, corrected_ptr, entry, inside, is_whole, decay, HAS_RESIDUAL)
    exact = value.to(tl.float64)
    there = row * BLOCK < numel
    start, stop = bounds_of(row, out_ptr, numel, there, BLOCK)
    _store_scales(
        out_ptr,
        row,
        there,
        count,
        tl.min(number_or_infinity(value, inside), axis=1),
        -tl.min(number_or_infinity(-value, inside), axis=1),
        tl.sum(tl.abs(exact), axis=1),
        tl.sum(exact * exact, axis=1),
        stop - start,
        KIND,
        FACTOR,
        IS_SYMMETRIC,
        IS_MOVED,
        LAST,
    )


@triton.jit(do_not_specialize=["count", "parts"])
def _scales(
    lows_ptr,
    highs_ptr,
    sizes_ptr,
    squares_ptr,
    offsets_ptr,
    out_ptr,
    numel,
    count,
    parts,
    BLOCK: tl.constexpr,
    KIND: tl.constexpr,
    FACTOR: tl.constexpr,
    IS_SYMMETRIC: tl.constexpr,
    IS_MOVED: tl.constexpr,
    LAST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A program some segments, whose parts it adds up."""
    count = count.to(tl.int64)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < count
    low = tl.full((ROWS, COLUMNS), float("inf"), dtype=tl.float32)
    negated_high = tl.full((ROWS, COLUMNS), float("inf"), dtype=tl.float32)
    size = tl.zeros((ROWS, COLUMNS), dtype=tl.float64)
    squares = tl.zeros((ROWS, COLUMNS), dtype=tl.float64)
    for first in range(0, parts, COLUMNS):
        part = first + tl.arange(0, COLUMNS)[None, :]
        inside = there[:, None] & (part < parts)
        place = row[:, None] * parts + part
        low = tl.minimum(low, tl.load(lows_ptr + place, mask=inside, other=float("inf")))
        high = tl.load(highs_ptr + place, mask=inside, other=-float("inf"))
        negated_high = tl.minimum(negated_high, -high)
        size += tl.load(sizes_ptr + place, mask=inside, other=0.0)
        squares += tl.load(squares_ptr + place, mask=inside, other=0.0)
    start, stop = bounds_of(row, offsets_ptr, numel, there, BLOCK)
    _store_scales(
        out_ptr,
        row,
        there,
        count,
        tl.min(low, axis=1),
        -tl.min(negated_high, axis=1),
        tl.sum(size, axis=1),
        tl.sum(squares, axis=1),
        stop - start,
        KIND,
        FACTOR,
        IS_SYMMETRIC,
        IS_MOVED,
        LAST,
    )
