"""The kernel of `largest_in_blocks`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from relaxcomm.kernels.compiled.triton_magnitude_statistics import magnitude_key
from relaxcomm.kernels.launch_sizes import next_power_of_two
from relaxcomm.kernels.magnitudes import NOT_A_NUMBER

_TILE = 4096  # entries of a program, or one block
_KEY_BITS = 31


def launch(
    flat: Tensor, table: tuple[Tensor, Tensor, Tensor, Tensor], size: int, capacity: int
) -> tuple[Tensor, Tensor]:
    """Values and places of the chosen entries; the table has starts, sizes, kept and ends of blocks."""
    values = torch.empty(capacity, dtype=flat.dtype, device=flat.device)
    places = torch.empty(capacity, dtype=torch.int32, device=flat.device)
    columns = next_power_of_two(size)
    rows, count = max(1, _TILE // columns), table[0].numel()
    _select[(-(-count // rows),)](
        *(flat, *table, values, places, count),
        ROWS=rows,
        COLUMNS=columns,
        KEY_BITS=_KEY_BITS,
        NOT_A_NUMBER=NOT_A_NUMBER,
        num_warps=8,
    )
    return values, places


@triton.jit(do_not_specialize=["count"])
def _select(
    flat_ptr,
    starts_ptr,
    sizes_ptr,
    kept_ptr,
    ends_ptr,
    values_ptr,
    places_ptr,
    count,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    KEY_BITS: tl.constexpr,
    NOT_A_NUMBER: tl.constexpr,
):
    """A program some blocks, each of which it holds as a whole."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < count
    start = tl.load(starts_ptr + row, mask=there, other=0)
    size = tl.load(sizes_ptr + row, mask=there, other=0).to(tl.int32)
    kept = tl.load(kept_ptr + row, mask=there, other=0).to(tl.int32)
    first = tl.load(ends_ptr + row, mask=there, other=0) - kept
    column = tl.arange(0, COLUMNS)[None, :]
    inside = column < size[:, None]
    value = tl.load(flat_ptr + start[:, None] + column, mask=inside, other=0.0)
    key = tl.where(inside, magnitude_key(value.to(tl.float32), NOT_A_NUMBER), -1)
    # The largest key that as many as are kept reach, bit by bit from the highest.
    least = tl.zeros((ROWS,), dtype=tl.int32)
    for bit in range(KEY_BITS):  # not unrolled: that takes seconds to compile, and half a megabyte
        higher = least | (1 << (KEY_BITS - 1 - bit))
        reached = tl.sum((key >= higher[:, None]).to(tl.int32), axis=1)
        least = tl.where(reached >= kept, higher, least)
    above = key > least[:, None]
    equal = (key == least[:, None]) & inside
    left = kept - tl.sum(above.to(tl.int32), axis=1)
    chosen = (above | (equal & (tl.cumsum(equal.to(tl.int32), axis=1) <= left[:, None]))) & there[:, None]
    slot = first[:, None] + tl.cumsum(chosen.to(tl.int32), axis=1) - 1
    tl.store(values_ptr + slot, value, mask=chosen)
    tl.store(places_ptr + slot, column + tl.zeros((ROWS, COLUMNS), dtype=tl.int32), mask=chosen)
