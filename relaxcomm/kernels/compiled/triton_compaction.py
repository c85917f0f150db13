"""The kernels of `compact`: one counts, one writes; both skip rows without a large entry."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from relaxcomm.kernels.compiled.triton_magnitude_statistics import magnitude_key
from relaxcomm.kernels.magnitudes import NOT_A_NUMBER, ROW, TILE

_MOST_PARTS = 1024
_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def launch(
    tensor: Tensor, threshold: Tensor, largest: Tensor, capacity: int, dtype: torch.dtype, subtract: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Values, indices and count."""
    tiles = triton.cdiv(tensor.numel(), TILE)
    tiles_each = triton.cdiv(tiles, _MOST_PARTS)
    parts = triton.cdiv(tiles, tiles_each)
    values = torch.zeros(capacity, dtype=dtype, device=tensor.device)
    indices = torch.zeros(capacity, dtype=torch.int32, device=tensor.device)
    count = torch.empty(1, dtype=torch.int32, device=tensor.device)
    counts = torch.empty(parts, dtype=torch.int32, device=tensor.device)
    reads = (tensor, largest, threshold, counts, tensor.numel(), tiles_each)
    constants = {"DTYPE": _DTYPES[dtype], "TILE": TILE, "ROW": ROW, "NOT_A_NUMBER": NOT_A_NUMBER}
    _count[(parts,)](*reads, **constants, num_warps=8)
    _write[(parts,)](
        *(*reads, values, indices, count, capacity, parts),
        **constants,
        PARTS=triton.next_power_of_2(parts),
        SUBTRACT=subtract,
        num_warps=8,
    )
    return values, indices, count


@triton.jit
def _chosen(
    tensor_ptr,
    largest_ptr,
    threshold,
    numel,
    tile,
    DTYPE: tl.constexpr,
    TILE: tl.constexpr,
    ROW: tl.constexpr,
    NOT_A_NUMBER: tl.constexpr,
):
    """Places of a tile, its entries, what they are rounded to, and which are chosen."""
    entry = tile * TILE + tl.arange(0, TILE)
    inside = entry < numel
    read = inside & (tl.load(largest_ptr + entry // ROW, mask=inside, other=0) > threshold)
    value = tl.load(tensor_ptr + entry, mask=read, other=0.0)
    rounded = value.to(DTYPE)
    chosen = read & (magnitude_key(rounded.to(tl.float32), NOT_A_NUMBER) > threshold)
    return entry, value, rounded, chosen


@triton.jit(do_not_specialize=["tiles_each"])
def _count(
    tensor_ptr,
    largest_ptr,
    threshold_ptr,
    counts_ptr,
    numel,
    tiles_each,
    DTYPE: tl.constexpr,
    TILE: tl.constexpr,
    ROW: tl.constexpr,
    NOT_A_NUMBER: tl.constexpr,
):
    """How many entries are chosen of each part."""
    part = tl.program_id(0)
    threshold = tl.load(threshold_ptr)
    found = tl.zeros((TILE,), dtype=tl.int32)
    for step in range(tiles_each):
        tile = part.to(tl.int64) * tiles_each + step
        _entry, _value, _rounded, chosen = _chosen(
            tensor_ptr, largest_ptr, threshold, numel, tile, DTYPE, TILE, ROW, NOT_A_NUMBER
        )
        found += chosen.to(tl.int32)
    tl.store(counts_ptr + part, tl.sum(found, axis=0))


@triton.jit(do_not_specialize=["tiles_each", "parts", "capacity"])
def _write(
    tensor_ptr,
    largest_ptr,
    threshold_ptr,
    counts_ptr,
    numel,
    tiles_each,
    values_ptr,
    indices_ptr,
    count_ptr,
    capacity,
    parts,
    DTYPE: tl.constexpr,
    TILE: tl.constexpr,
    ROW: tl.constexpr,
    NOT_A_NUMBER: tl.constexpr,
    PARTS: tl.constexpr,
    SUBTRACT: tl.constexpr,
):
    """What is chosen of each part, behind what is chosen of the parts before it."""
    part = tl.program_id(0)
    threshold = tl.load(threshold_ptr)
    others = tl.arange(0, PARTS)
    counts = tl.load(counts_ptr + others, mask=others < parts, other=0)
    before = tl.sum(tl.where(others < part, counts, 0), axis=0)
    if part == 0:
        tl.store(count_ptr, tl.minimum(tl.sum(counts, axis=0), capacity))
    for step in range(tiles_each):
        tile = part.to(tl.int64) * tiles_each + step
        entry, value, rounded, chosen = _chosen(
            tensor_ptr, largest_ptr, threshold, numel, tile, DTYPE, TILE, ROW, NOT_A_NUMBER
        )
        number = chosen.to(tl.int32)
        slot = before + tl.cumsum(number, 0) - number
        sent = chosen & (slot < capacity)
        tl.store(values_ptr + slot, rounded, mask=sent)
        tl.store(indices_ptr + slot, entry.to(tl.int32), mask=sent)
        if SUBTRACT:
            left = value.to(tl.float32) - rounded.to(tl.float32)
            tl.store(tensor_ptr + entry, left.to(tensor_ptr.dtype.element_ty), mask=sent)
        before += tl.sum(number, axis=0)
