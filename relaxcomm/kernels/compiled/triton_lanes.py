"""Which lanes of a message a program works on, and which segments their entries belong to."""

from __future__ import annotations

import triton
import triton.language as tl

from relaxcomm.kernels.code_lanes import CodeLanes

_TILE = 2048  # lanes of a program


def lane_tile(lanes: CodeLanes) -> tuple[int, int, int]:
    """Programs, and rows and columns of each: whole blocks where lanes are cut into them."""
    columns = triton.next_power_of_2(lanes.row) if lanes.row else _TILE
    rows = max(1, _TILE // columns)
    return triton.cdiv(lanes.lanes, rows * (lanes.row or columns)), rows, columns


@triton.jit
def lane_places(num_lanes, ROW: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The rows of a program, `[ROWS, 1]`, its lanes, `[ROWS, COLUMNS]`, and which of them there are."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    if ROW > 0:
        lane = row * ROW + column
        there = (column < ROW) & (lane < num_lanes)
    else:
        lane = row * COLUMNS + column
        there = lane < num_lanes
    return row, lane, there


@triton.jit
def segment_of(
    row,
    entry,
    inside,
    first,
    offsets_ptr,
    count,
    ROW: tl.constexpr,
    BLOCK: tl.constexpr,
    SEARCHES: tl.constexpr,
):
    """The segment of each entry, or of each row if rows are blocks, and which of them there are."""
    if ROW > 0:
        own = row + first // ROW
        known = own < count
    elif BLOCK > 0:
        own = entry // BLOCK
        known = inside
    else:
        own = entry * 0
        behind = own + count
        for _ in tl.static_range(SEARCHES):
            middle = (own + behind) // 2
            starts_before = tl.load(offsets_ptr + middle, mask=inside, other=0) <= entry
            own = tl.where(starts_before, middle, own)
            behind = tl.where(starts_before, behind, middle)
        known = inside
    return own, known
