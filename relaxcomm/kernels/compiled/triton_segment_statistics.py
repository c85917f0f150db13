"""The kernel that reads what `segment_scales` asks of segments of any sizes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from relaxcomm.kernels.compiled.triton_feedback import corrected
from relaxcomm.kernels.segment_statistics import offsets_of
from relaxcomm.tensors.segments import Segments

_TILE = 2048
_MOST_PROGRAMS = 1 << 16


def launch(
    tensor: Tensor, segments: Segments, residual: Tensor | None, decay: float, out: Tensor | None
) -> tuple[tuple[Tensor, ...], int, Tensor | None]:
    """Least and largest entry that is a number, the sums of sizes and squares, of as many parts of each
    segment, and where segments begin if no common size tells.
    """
    block = 0 if segments.shard_size else segments.block_size or 0
    offsets = None if block else offsets_of(segments, tensor.device)
    longest = segments.block_size or max(segments.sizes)
    parts = max(1, min(-(-longest // _TILE), _MOST_PROGRAMS // segments.count))
    programs = segments.count * parts
    types = torch.float32, torch.float32, torch.float64, torch.float64
    found = tuple(torch.empty(programs, dtype=dtype, device=tensor.device) for dtype in types)
    _parts[(programs,)](
        tensor,
        tensor if residual is None else residual,
        tensor if out is None else out,
        decay,
        *(tensor if offsets is None else offsets, *found, tensor.numel(), parts),
        HAS_RESIDUAL=residual is not None,
        BLOCK=block,
        TILE=_TILE,
        num_warps=8,
        enable_fp_fusion=False,
    )
    return found, parts, offsets


@triton.jit
def number_or_infinity(value, inside):
    """What a minimum is taken of: NaN is told by the sums."""
    return tl.where(inside & (value == value), value, float("inf"))


@triton.jit
def bounds_of(segment, offsets_ptr, numel, there, BLOCK: tl.constexpr):
    """Where segments begin and end, in int64."""
    if BLOCK > 0:
        start = segment.to(tl.int64) * BLOCK
        stop = tl.minimum(start + BLOCK, numel)
    else:
        start = tl.load(offsets_ptr + segment, mask=there, other=0)
        stop = tl.load(offsets_ptr + segment + 1, mask=there, other=1)
    return start, stop


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
    numel,
    parts,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    """Every so many-th tile of a segment."""
    out = tl.program_id(0)
    segment, part = out // parts, out % parts
    start, stop = bounds_of(segment, offsets_ptr, numel, segment >= 0, BLOCK)
    place = tl.arange(0, TILE)[None, :]
    low = tl.full((1, TILE), float("inf"), dtype=tl.float32)
    negated_high = tl.full((1, TILE), float("inf"), dtype=tl.float32)
    size = tl.zeros((1, TILE), dtype=tl.float64)
    squares = tl.zeros((1, TILE), dtype=tl.float64)
    aligned = start // 16 * 16  # from where several entries can be read at once
    for tile in range(part, tl.cdiv(stop - aligned, TILE), parts):
        first = aligned + tile * TILE
        entry = first + place
        inside = (entry >= start) & (entry < stop)
        is_whole = (first >= start) & (first + TILE <= stop)
        value = corrected(tensor_ptr, residual_ptr, out_ptr, entry, inside, is_whole, decay, HAS_RESIDUAL)
        exact = value.to(tl.float64)
        low = tl.minimum(low, number_or_infinity(value, inside))
        negated_high = tl.minimum(negated_high, number_or_infinity(-value, inside))
        size += tl.abs(exact)
        squares += exact * exact
    tl.store(lows_ptr + out, tl.min(low))
    tl.store(highs_ptr + out, -tl.min(negated_high))
    tl.store(sizes_ptr + out, tl.sum(size))
    tl.store(squares_ptr + out, tl.sum(squares))
