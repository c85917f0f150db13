"""The kernel of `sum_levels`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from relaxcomm.kernels.compiled.triton_feedback import write
from relaxcomm.kernels.compiled.triton_lanes import (
    are_before,
    has_all,
    lane_launch,
    lane_places,
    scale_of,
    segment_of,
    shard_of,
)
from relaxcomm.tensors.segments import Segments


def launch(
    codes: Tensor,
    steps: Tensor,
    lows: Tensor | None,
    weights: Tensor,
    offsets: Tensor | None,
    segments: Segments,
    num_codes: int,
) -> Tensor:
    """The weighted sum of the levels, `[numel]` float32."""
    out = torch.empty(segments.numel, dtype=torch.float32, device=codes.device)
    grid, sizes, constants = lane_launch(segments, num_codes, offsets)
    distances = codes.data_ptr() | codes.stride(0) | sizes[2] | constants["ROW"]
    _sum[grid](
        codes,
        steps,
        steps if lows is None else lows,
        weights,
        codes if offsets is None else offsets,
        out,
        *(*sizes, segments.count, len(codes)),
        *(codes.stride(0), steps.stride(0), 0 if lows is None else lows.stride(0)),
        MIDDLE=(num_codes - 1) / 2,
        **constants,
        HAS_LOWS=lows is not None,
        # As many codes at once as levels are written: 16 would pass between threads for each worker.
        ALIGNED=1 if distances % 4 else 4,
        num_warps=constants["ROWS"] * constants["COLUMNS"] // 512,
        enable_fp_fusion=False,  # rounded as the same arithmetic in torch
    )
    return out


@triton.jit(do_not_specialize=["count", "num_workers", "codes_stride", "steps_stride", "lows_stride"])
def _sum(
    codes_ptr,
    steps_ptr,
    lows_ptr,
    weights_ptr,
    offsets_ptr,
    out_ptr,
    numel,
    size,
    num_bytes,
    num_lanes,
    last_bytes,
    last_lanes,
    count,
    num_workers,
    codes_stride,
    steps_stride,
    lows_stride,
    MIDDLE: tl.constexpr,
    BASE: tl.constexpr,
    DIGITS: tl.constexpr,
    PARTS: tl.constexpr,
    ROW: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    SEARCHES: tl.constexpr,
    IS_SHARDED: tl.constexpr,
    HAS_LOWS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """A program some lanes of every part of a shard, of all workers."""
    past = 0
    if IS_SHARDED:
        begin, skipped, past, numel, num_bytes, num_lanes = shard_of(
            numel, size, num_bytes, num_lanes, last_bytes, last_lanes, BLOCK
        )
        codes_ptr += skipped
        out_ptr += begin
    base, place, there = lane_places(num_lanes, ROW, ROWS, COLUMNS)
    for digit in tl.static_range(DIGITS):
        for part in tl.static_range(PARTS):
            first = base + tl.cast(num_lanes, tl.int64) * part
            start = first + tl.cast(num_bytes, tl.int64) * digit
            inside = there & are_before(place, num_bytes - first, ROWS, COLUMNS)
            inside = inside & are_before(place, numel - start, ROWS, COLUMNS)
            last = tl.minimum(num_bytes - first, numel - start)
            is_whole = has_all(tl.minimum(num_lanes - base, last), ROW, ROWS, COLUMNS)
            own, known = segment_of(
                start, place, inside, numel, past, offsets_ptr, count, ROW, ROWS, COLUMNS, BLOCK, SEARCHES
            )
            total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
            for worker in range(num_workers):
                # A row's distance in int64: many workers' messages may be more than an int32 counts.
                codes = codes_ptr + tl.cast(codes_stride, tl.int64) * worker + first
                packed = tl.load(tl.multiple_of(codes + place, [1, ALIGNED]), mask=inside, other=0)
                level = (packed.to(tl.int32) // BASE**digit % BASE).to(tl.float32)
                step = scale_of(steps_ptr + tl.cast(steps_stride, tl.int64) * worker, own, known, ROW)
                if HAS_LOWS:
                    low = scale_of(lows_ptr + tl.cast(lows_stride, tl.int64) * worker, own, known, ROW)
                    level = level * step + low
                else:
                    level = (level - MIDDLE) * step
                total += level * tl.load(weights_ptr + worker)
            write(out_ptr, start + place, total, inside, is_whole)
