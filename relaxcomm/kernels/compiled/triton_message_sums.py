"""The kernel of `sum_levels`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from relaxcomm.kernels.code_lanes import CodeLanes
from relaxcomm.kernels.compiled.triton_lanes import lane_places, lane_tile, segment_of
from relaxcomm.tensors.segments import Segments


def launch(
    codes: Tensor,
    steps: Tensor,
    lows: Tensor | None,
    weights: Tensor,
    offsets: Tensor | None,
    segments: Segments,
    lanes: CodeLanes,
    num_codes: int,
) -> Tensor:
    """The weighted sum of the levels, `[numel]` float32."""
    out = torch.empty(lanes.numel, dtype=torch.float32, device=codes.device)
    programs, rows, columns = lane_tile(lanes)
    _sum[(programs,)](
        codes,
        steps,
        steps if lows is None else lows,
        weights,
        codes if offsets is None else offsets,
        out,
        *(lanes.numel, lanes.num_bytes, lanes.lanes, segments.count, len(codes)),
        *(codes.stride(0), steps.stride(0), 0 if lows is None else lows.stride(0)),
        MIDDLE=(num_codes - 1) / 2,
        BASE=lanes.base,
        DIGITS=lanes.digits,
        PARTS=lanes.parts,
        ROW=lanes.row,
        ROWS=rows,
        COLUMNS=columns,
        BLOCK=0 if offsets is not None else segments.block_size,
        SEARCHES=0 if offsets is None else len(offsets).bit_length(),
        HAS_LOWS=lows is not None,
        num_warps=8,
        enable_fp_fusion=False,  # rounded as the same arithmetic in torch
    )
    return out


@triton.jit(
    do_not_specialize=[
        *("numel", "num_bytes", "num_lanes", "count", "num_workers"),
        *("codes_stride", "steps_stride", "lows_stride"),
    ]
)
def _sum(
    codes_ptr,
    steps_ptr,
    lows_ptr,
    weights_ptr,
    offsets_ptr,
    out_ptr,
    numel,
    num_bytes,
    num_lanes,
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
    HAS_LOWS: tl.constexpr,
):
    """A program some lanes of every part, of all workers."""
    num_bytes, num_lanes = num_bytes.to(tl.int64), num_lanes.to(tl.int64)
    codes_stride, steps_stride = codes_stride.to(tl.int64), steps_stride.to(tl.int64)
    lows_stride = lows_stride.to(tl.int64)
    row, lane, there = lane_places(num_lanes, ROW, ROWS, COLUMNS)
    for digit in tl.static_range(DIGITS):
        for part in tl.static_range(PARTS):
            first = num_lanes * part
            byte = lane + first
            entry = byte + num_bytes * digit
            inside = there & (byte < num_bytes) & (entry < numel)
            own, known = segment_of(row, entry, inside, first, offsets_ptr, count, ROW, BLOCK, SEARCHES)
            total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
            for worker in range(num_workers):
                packed = tl.load(codes_ptr + worker * codes_stride + byte, mask=inside, other=0)
                level = (packed.to(tl.int32) // BASE**digit % BASE).to(tl.float32)
                step = tl.load(steps_ptr + worker * steps_stride + own, mask=known, other=0.0)
                if HAS_LOWS:
                    low = tl.load(lows_ptr + worker * lows_stride + own, mask=known, other=0.0)
                    level = level * step + low
                else:
                    level = (level - MIDDLE) * step
                total += level * tl.load(weights_ptr + worker)
            tl.store(out_ptr + entry, total, mask=inside)
