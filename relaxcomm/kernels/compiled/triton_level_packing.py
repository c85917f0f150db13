"""The kernel of `pack_levels` and `pack_nonnegative`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from relaxcomm.kernels.code_lanes import fraction_bits
from relaxcomm.kernels.compiled.triton_feedback import read, write
from relaxcomm.kernels.compiled.triton_lanes import (
    are_before,
    has_all,
    lane_launch,
    lane_places,
    scale_of,
    segment_of,
    shard_of,
)
from relaxcomm.kernels.compiled.triton_rounding import key_numbers, rounded, shard_key
from relaxcomm.kernels.philox import Keys
from relaxcomm.kernels.segment_statistics import offsets_of
from relaxcomm.tensors.segments import Segments

_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def launch(
    tensor: Tensor,
    scales: tuple[Tensor | None, tuple[Tensor, Tensor] | None, Tensor | None, Tensor | None],
    segments: Segments,
    num_codes: int,
    key: Keys | None,
    dtype: torch.dtype,
) -> Tensor:
    """The packed codes, those of each shard behind those before it.

    Scales are of each segment the inverse step (None for one bit: whether an entry is 0 or more), the
    `origins` and the low (None if levels lie around 0), and the step (None where nothing is subtracted).
    """
    inverses, origins, lows, steps = scales
    offsets = None if segments.block_size else offsets_of(segments, tensor.device)
    shifts, zeros = origins or (tensor, tensor)
    bits = fraction_bits(num_codes, has_lows=origins is not None)
    grid, sizes, constants = lane_launch(segments, num_codes, offsets)
    _, _, num_bytes, _, last_bytes, _ = sizes
    out = torch.empty((grid[1] - 1) * num_bytes + last_bytes, dtype=torch.uint8, device=tensor.device)
    _pack[grid](
        tensor,
        tensor if inverses is None else inverses,
        *(shifts, zeros),
        tensor if lows is None else lows,
        tensor if steps is None else steps,
        tensor if offsets is None else offsets,
        out,
        *(*sizes, segments.count),
        *key_numbers(key),
        **constants,
        IS_SIGN=inverses is None,
        SUBTRACTS=steps is not None,
        DTYPE=_DTYPES[dtype],
        MIDDLE=(num_codes - 1) / 2,
        HAS_LOWS=origins is not None,
        IS_DRAWN=key is not None,
        LAST=num_codes - 1,
        BITS=bits,
        UPPER=2.0 ** (bits - 32),
        num_warps=constants["ROWS"] * constants["COLUMNS"] // 256,
        enable_fp_fusion=False,  # rounded as the same arithmetic in torch
    )
    return out


@triton.jit(do_not_specialize=["count", "key_low", "key_high"])
def _pack(
    tensor_ptr,
    inverses_ptr,
    shifts_ptr,
    zeros_ptr,
    lows_ptr,
    steps_ptr,
    offsets_ptr,
    out_ptr,
    numel,
    size,
    num_bytes,
    num_lanes,
    last_bytes,
    last_lanes,
    count,
    key_low,
    key_high,
    BASE: tl.constexpr,
    DIGITS: tl.constexpr,
    PARTS: tl.constexpr,
    ROW: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    SEARCHES: tl.constexpr,
    IS_SHARDED: tl.constexpr,
    IS_SIGN: tl.constexpr,
    SUBTRACTS: tl.constexpr,
    DTYPE: tl.constexpr,
    MIDDLE: tl.constexpr,
    HAS_LOWS: tl.constexpr,
    IS_DRAWN: tl.constexpr,
    LAST: tl.constexpr,
    BITS: tl.constexpr,
    UPPER: tl.constexpr,
):
    """A program some lanes of every part of a shard."""
    past = 0
    if IS_SHARDED:
        begin, skipped, past, numel, num_bytes, num_lanes = shard_of(
            numel, size, num_bytes, num_lanes, last_bytes, last_lanes, BLOCK
        )
        tensor_ptr += begin
        out_ptr += skipped
        if IS_DRAWN:
            key_low, key_high = shard_key(key_low, key_high)
    base, place, there = lane_places(num_lanes, ROW, ROWS, COLUMNS)
    for part in tl.static_range(PARTS):
        first = base + tl.cast(num_lanes, tl.int64) * part
        stored = there & are_before(place, num_bytes - first, ROWS, COLUMNS)
        left = tl.minimum(num_lanes - base, num_bytes - first)
        packed = tl.zeros((ROWS, COLUMNS), dtype=tl.int32)
        for reverse in tl.static_range(DIGITS):
            start = first + tl.cast(num_bytes, tl.int64) * (DIGITS - 1 - reverse)
            inside = stored & are_before(place, numel - start, ROWS, COLUMNS)
            is_whole = has_all(tl.minimum(left, numel - start), ROW, ROWS, COLUMNS)
            held = read(tensor_ptr, start + place, inside, is_whole)
            value = held.to(DTYPE).to(tl.float32)
            if SUBTRACTS or not IS_SIGN:
                own, known = segment_of(
                    start, place, inside, numel, past, offsets_ptr, count, ROW, ROWS, COLUMNS, BLOCK, SEARCHES
                )
            if IS_SIGN:
                code = (value >= 0).to(tl.int32)
            else:
                if HAS_LOWS:
                    value -= scale_of(shifts_ptr, own, known, ROW)
                    zero = scale_of(zeros_ptr, own, known, ROW)
                else:
                    zero = tl.full((1, 1), LAST // 2, tl.float32)
                level = value * scale_of(inverses_ptr, own, known, ROW)
                slot = part * DIGITS + DIGITS - 1 - reverse
                code = rounded(
                    level, zero, base + place, key_low, key_high, slot, IS_DRAWN, LAST, BITS, UPPER
                )
            if SUBTRACTS:
                step = scale_of(steps_ptr, own, known, ROW)
                if HAS_LOWS:
                    sent = code.to(tl.float32) * step + scale_of(lows_ptr, own, known, ROW)
                else:
                    sent = (code.to(tl.float32) - MIDDLE) * step
                write(tensor_ptr, start + place, held - sent, inside, is_whole)
            packed = packed * BASE + tl.where(inside, code, 0)
        is_whole = has_all(left, ROW, ROWS, COLUMNS)
        write(out_ptr, first + place, packed.to(tl.uint8), stored, is_whole)
