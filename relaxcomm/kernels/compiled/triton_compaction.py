"""The kernels of `compact`: one lists rows with a large entry and counts in these, one writes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from relaxcomm.kernels.compiled.triton_feedback import read
from relaxcomm.kernels.compiled.triton_magnitude_statistics import magnitude_key
from relaxcomm.kernels.launch_sizes import next_power_of_two
from relaxcomm.kernels.magnitudes import NOT_A_NUMBER, ROW

_LISTED = 1024  # rows that a program looks through at once
_ROWS = 16  # rows that a program reads at once
_MOST_PARTS = 1024
_DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def launch(
    tensor: Tensor, threshold: Tensor, largest: Tensor, capacity: int, dtype: torch.dtype, subtract: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Values, indices and count."""
    num_rows = len(largest)
    rows_each = -(-num_rows // min(_MOST_PARTS, -(-num_rows // _ROWS)))
    parts = -(-num_rows // rows_each)
    values = torch.empty(capacity, dtype=dtype, device=tensor.device)
    indices, count, rows, counts = (
        torch.empty(size, dtype=torch.int32, device=tensor.device)
        for size in (capacity, 1, num_rows, 2 * parts)
    )
    reads = (tensor, threshold, rows, counts, values, indices, tensor.numel(), rows_each, capacity, parts)
    constants = {"DTYPE": _DTYPES[dtype], "ROWS": _ROWS, "ROW": ROW, "NOT_A_NUMBER": NOT_A_NUMBER}
    _count[(parts,)](*reads, largest, num_rows, **constants, TILE=_LISTED, num_warps=8)
    _write[(parts,)](
        *(*reads, count),
        **constants,
        PARTS=next_power_of_two(parts),
        SUBTRACT=subtract,
        num_warps=8,
    )
    return values, indices, count


@triton.jit
def _chosen(
    tensor_ptr,
    rows_ptr,
    threshold,
    numel,
    left,
    DTYPE: tl.constexpr,
    ROWS: tl.constexpr,
    ROW: tl.constexpr,
    NOT_A_NUMBER: tl.constexpr,
):
    """Places of the next rows' entries, these, what they are rounded to, and which are chosen."""
    number = tl.arange(0, ROWS)
    row = tl.load(rows_ptr + number, mask=number < left, other=0)
    entry = row.to(tl.int64)[:, None] * ROW + tl.arange(0, ROW)[None, :]
    inside = (number < left)[:, None] & (entry < numel)
    is_whole = (left >= ROWS) & ((tl.max(row, axis=0).to(tl.int64) + 1) * ROW <= numel)
    value = read(tensor_ptr, entry, inside, is_whole)
    rounded = value.to(DTYPE)
    chosen = inside & (magnitude_key(rounded.to(tl.float32), NOT_A_NUMBER) > threshold)
    return entry, value, rounded, chosen


@triton.jit
def _clear(values_ptr, indices_ptr, capacity, part, parts, TILE: tl.constexpr):
    """A part of a message: what is not written later is 0."""
    each = (capacity.to(tl.int64) + parts - 1) // parts  # int32 ends where the last part of a long one does
    stop = tl.minimum((part + 1) * each, capacity)
    for first in range(part * each, stop, TILE):
        slot = first + tl.arange(0, TILE)
        tl.store(values_ptr + slot, 0.0, mask=slot < stop)
        tl.store(indices_ptr + slot, 0, mask=slot < stop)


@triton.jit
def _list(largest_ptr, threshold, rows_ptr, start, stop, TILE: tl.constexpr):
    """Writes the rows of a part that hold a large entry, from where the part begins; how many."""
    listed = start
    for first in range(start, stop, TILE):
        row = first + tl.arange(0, TILE)
        chosen = (tl.load(largest_ptr + row, mask=row < stop, other=0) > threshold).to(tl.int32)
        tl.store(rows_ptr + listed + tl.cumsum(chosen, 0) - chosen, row, mask=chosen > 0)
        listed += tl.sum(chosen, axis=0)
    return listed - start


@triton.jit(do_not_specialize=["rows_each", "capacity", "parts", "num_rows"])
def _count(
    tensor_ptr,
    threshold_ptr,
    rows_ptr,
    counts_ptr,
    values_ptr,
    indices_ptr,
    numel,
    rows_each,
    capacity,
    parts,
    largest_ptr,
    num_rows,
    DTYPE: tl.constexpr,
    ROWS: tl.constexpr,
    ROW: tl.constexpr,
    NOT_A_NUMBER: tl.constexpr,
    TILE: tl.constexpr,
):
    """How many rows of each part are listed, and how many entries of these are chosen."""
    part = tl.program_id(0)
    _clear(values_ptr, indices_ptr, capacity, part, parts, TILE)
    threshold = tl.load(threshold_ptr)
    start = part * rows_each
    listed = _list(largest_ptr, threshold, rows_ptr, start, tl.minimum(start + rows_each, num_rows), TILE)
    tl.debug_barrier()  # other threads read what one has listed
    found = tl.zeros((ROWS,), dtype=tl.int32)
    for first in range(0, listed, ROWS):
        rows = rows_ptr + start + first
        _entry, _value, _rounded, chosen = _chosen(
            tensor_ptr, rows, threshold, numel, listed - first, DTYPE, ROWS, ROW, NOT_A_NUMBER
        )
        found += tl.sum(chosen.to(tl.int32), axis=1)
    tl.store(counts_ptr + part, tl.sum(found, axis=0))
    tl.store(counts_ptr + parts + part, listed)


@triton.jit(do_not_specialize=["rows_each", "parts", "capacity"])
def _write(
    tensor_ptr,
    threshold_ptr,
    rows_ptr,
    counts_ptr,
    values_ptr,
    indices_ptr,
    numel,
    rows_each,
    capacity,
    parts,
    count_ptr,
    DTYPE: tl.constexpr,
    ROWS: tl.constexpr,
    ROW: tl.constexpr,
    NOT_A_NUMBER: tl.constexpr,
    PARTS: tl.constexpr,
    SUBTRACT: tl.constexpr,
):
    """What is chosen of each part, behind what is chosen of the parts before it."""
    part = tl.program_id(0)
    threshold = tl.load(threshold_ptr)
    listed = tl.load(counts_ptr + parts + part)
    others = tl.arange(0, PARTS)
    counts = tl.load(counts_ptr + others, mask=others < parts, other=0)
    before = tl.sum(tl.where(others < part, counts, 0), axis=0)
    if part == 0:
        tl.store(count_ptr, tl.minimum(tl.sum(counts, axis=0), capacity))
    for first in range(0, listed, ROWS):
        rows = rows_ptr + part * rows_each + first
        entry, value, rounded, chosen = _chosen(
            tensor_ptr, rows, threshold, numel, listed - first, DTYPE, ROWS, ROW, NOT_A_NUMBER
        )
        number = chosen.to(tl.int32)
        of_row = tl.sum(number, axis=1)
        in_rows_before = tl.cumsum(of_row, 0) - of_row
        slot = before + in_rows_before[:, None] + tl.cumsum(number, 1) - number
        sent = chosen & (slot < capacity)
        tl.store(values_ptr + slot, rounded, mask=sent)
        tl.store(indices_ptr + slot, entry.to(tl.int32), mask=sent)
        if SUBTRACT:
            left = value.to(tl.float32) - rounded.to(tl.float32)
            tl.store(tensor_ptr + entry, left.to(tensor_ptr.dtype.element_ty), mask=sent)
        before += tl.sum(of_row, axis=0)
