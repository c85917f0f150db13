"""The kernel of `quantize_blocks`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from relaxcomm.kernels.code_lanes import fraction_bits
from relaxcomm.kernels.compiled.triton_feedback import summed, write
from relaxcomm.kernels.compiled.triton_lanes import are_before, has_all, lane_launch, lane_places, shard_of
from relaxcomm.kernels.compiled.triton_levels import levels_between, origins
from relaxcomm.kernels.compiled.triton_rounding import key_numbers, rounded, shard_key
from relaxcomm.kernels.levels import moves_to_zero
from relaxcomm.kernels.philox import Keys
from relaxcomm.tensors.segments import Segments


def launch(
    tensor: Tensor,
    segments: Segments,
    num_codes: int,
    symmetric: bool,
    key: Keys | None,
    residual: Tensor | None,
    decay: float,
    out: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, steps, and lows unless the levels lie around 0."""
    codes = torch.empty(segments.numel, dtype=torch.uint8, device=tensor.device)
    steps = torch.empty(segments.count, dtype=torch.float32, device=tensor.device)
    lows = steps[:0] if symmetric else torch.empty_like(steps)
    bits = fraction_bits(num_codes, has_lows=not symmetric)
    grid, sizes, constants = lane_launch(segments, num_codes, None)
    _quantize[grid](
        tensor,
        tensor if residual is None else residual,
        tensor if out is None else out,
        decay,
        *(codes, steps, lows),
        *sizes,
        *key_numbers(key),
        HAS_RESIDUAL=residual is not None,
        IS_SYMMETRIC=symmetric,
        IS_MOVED=moves_to_zero(num_codes, symmetric=symmetric),
        **{name: constants[name] for name in ("PARTS", "ROW", "ROWS", "COLUMNS", "IS_SHARDED")},
        LAST=num_codes - 1,
        IS_DRAWN=key is not None,
        BITS=bits,
        UPPER=2.0 ** (bits - 32),
        num_warps=constants["ROWS"] * constants["COLUMNS"] // 512,
        enable_fp_fusion=False,  # rounded as the same arithmetic in torch
    )
    return codes, steps, lows


@triton.jit
def _extremes(value, inside):
    """Of each row, `[ROWS]`; NaN where an entry is not finite."""
    low = tl.min(tl.where(inside, value, float("inf")), axis=1)
    high = tl.max(tl.where(inside, value, -float("inf")), axis=1)
    spoilt = tl.max((inside & (value - value != 0)).to(tl.int32), axis=1) > 0
    return tl.where(spoilt, float("nan"), low), tl.where(spoilt, float("nan"), high)


@triton.jit(do_not_specialize=["decay", "key_low", "key_high"])
def _quantize(
    tensor_ptr,
    residual_ptr,
    out_ptr,
    decay,
    codes_ptr,
    steps_ptr,
    lows_ptr,
    numel,
    size,
    num_bytes,
    num_lanes,
    last_bytes,
    last_lanes,
    key_low,
    key_high,
    HAS_RESIDUAL: tl.constexpr,
    IS_SYMMETRIC: tl.constexpr,
    IS_MOVED: tl.constexpr,
    PARTS: tl.constexpr,
    ROW: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    IS_SHARDED: tl.constexpr,
    LAST: tl.constexpr,
    IS_DRAWN: tl.constexpr,
    BITS: tl.constexpr,
    UPPER: tl.constexpr,
):
    """A program some blocks of every part of a shard, each read once."""
    if IS_SHARDED:
        begin, skipped, block, numel, num_bytes, num_lanes = shard_of(
            numel, size, num_bytes, num_lanes, last_bytes, last_lanes, ROW
        )
        tensor_ptr += begin
        residual_ptr += begin
        out_ptr += begin
        codes_ptr += skipped
        steps_ptr += block
        lows_ptr += block
        if IS_DRAWN:
            key_low, key_high = shard_key(key_low, key_high)
    base, place, there = lane_places(num_lanes, ROW, ROWS, COLUMNS)
    begins = tl.arange(0, ROWS) * ROW
    for part in tl.static_range(PARTS):
        first = base + tl.cast(num_lanes, tl.int64) * part
        inside = there & are_before(place, numel - first, ROWS, COLUMNS)
        is_whole = has_all(tl.minimum(num_lanes - base, numel - first), ROW, ROWS, COLUMNS)
        total = summed(tensor_ptr, residual_ptr, first + place, inside, is_whole, decay, HAS_RESIDUAL)
        value = total.to(tensor_ptr.dtype.element_ty).to(tl.float32)
        low, high = _extremes(value, inside)
        step, inverse, low = levels_between(low, high, IS_SYMMETRIC, IS_MOVED, LAST)
        own = first // ROW + tl.arange(0, ROWS)
        known = (own * ROW < numel) & (base + begins < num_lanes)
        tl.store(steps_ptr + own, step, mask=known)
        if IS_SYMMETRIC:
            zero = tl.full((1, 1), LAST // 2, tl.float32)
            level = value * inverse[:, None]
        else:
            tl.store(lows_ptr + own, low, mask=known)
            shift, zero = origins(step, inverse, low, LAST)
            zero = zero[:, None]
            level = (value - shift[:, None]) * inverse[:, None]
        code = rounded(level, zero, base + place, key_low, key_high, part, IS_DRAWN, LAST, BITS, UPPER)
        write(codes_ptr, first + place, code.to(tl.uint8), inside, is_whole)
        if HAS_RESIDUAL:
            if IS_SYMMETRIC:
                sent = (code.to(tl.float32) - LAST / 2) * step[:, None]
            else:
                sent = code.to(tl.float32) * step[:, None] + low[:, None]
            write(out_ptr, first + place, total - sent, inside, is_whole)
