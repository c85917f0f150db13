"""The kernel that makes what `segment_scales` returns of what has been read."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from relaxcomm.kernels.compiled.triton_levels import inverse_steps, levels_between, origins
from relaxcomm.kernels.compiled.triton_segment_statistics import bounds_of
from relaxcomm.kernels.launch_sizes import next_power_of_two
from relaxcomm.kernels.levels import moves_to_zero
from relaxcomm.kernels.segment_statistics import ScaleRule
from relaxcomm.tensors.segments import Segments

_TOGETHER = 1024  # parts that a program adds up at once


def launch(
    found: tuple[Tensor, ...], parts: int, offsets: Tensor | None, segments: Segments, rule: ScaleRule
) -> tuple[Tensor, Tensor, Tensor | None, tuple[Tensor, Tensor] | None]:
    """Steps, their inverses, the lowest levels and origins, of what was found in as many parts of each."""
    made = torch.empty(
        2 if rule.symmetric else 5, segments.count, dtype=torch.float32, device=found[0].device
    )
    columns = min(next_power_of_two(parts), _TOGETHER)
    rows = _TOGETHER // columns
    _scales[(-(-segments.count // rows),)](
        *(*found, made if offsets is None else offsets, made, segments.numel, segments.count, parts),
        BLOCK=segments.block_size or 0,
        KIND=rule.kind,
        FACTOR=rule.factor,
        IS_SYMMETRIC=rule.symmetric,
        IS_MOVED=moves_to_zero(rule.num_codes, symmetric=rule.symmetric),
        LAST=rule.num_codes - 1,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=4,
        enable_fp_fusion=False,  # rounded as the same arithmetic in torch
    )
    steps, inverses, *others = made.unbind()
    if not others:
        return steps, inverses, None, None
    lows, shifts, zeros = others
    return steps, inverses, lows, (shifts, zeros)


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
    """A program some segments, whose parts it adds up; then as `ScaleRule.of` and `scales_of`."""
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
    total = tl.sum(squares, axis=1)
    spoilt = total - total != 0
    low = tl.where(spoilt, float("nan"), tl.min(low, axis=1))
    high = tl.where(spoilt, float("nan"), -tl.min(negated_high, axis=1))
    start, stop = bounds_of(row, offsets_ptr, numel, there, BLOCK)
    number = (stop - start).to(tl.float64)
    if KIND == "range":
        step, inverse, low = levels_between(low, high, IS_SYMMETRIC, IS_MOVED, LAST)
    else:
        if KIND == "mean":
            step = (tl.sum(size, axis=1) / number * FACTOR).to(tl.float32)
        elif KIND == "norm":
            step = (tl.sqrt(total) * FACTOR).to(tl.float32)
        else:
            clip = (tl.sqrt(total / number) * FACTOR).to(tl.float32)
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
