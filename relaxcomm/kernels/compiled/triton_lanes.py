"""Which lanes of a message a program works on, and which segments their entries belong to."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from relaxcomm.kernels.code_lanes import code_lanes
from relaxcomm.kernels.launch_sizes import next_power_of_two
from relaxcomm.tensors.segments import Segments

_TILE = 1024  # lanes of a program, or one block
_LONG_TILE = 2048  # where each has segments to look for


def lane_launch(
    segments: Segments, num_codes: int, offsets: Tensor | None
) -> tuple[tuple[int, int], tuple[int, ...], dict[str, int]]:
    """The grid, and the numbers and constants by which each program finds its lanes and their segments.

    Args:
        segments: of the entries, which are those of one message or of one a shard.
        num_codes: 2 to 256.
        offsets: where each segment begins; None where all are blocks of one size.
    """
    lanes, last = (code_lanes(segments.shards[index], num_codes) for index in (0, -1))
    columns = next_power_of_two(lanes.row) if lanes.row else _LONG_TILE
    rows = max(1, _TILE // columns)  # of lanes, or whole blocks where lanes are cut into them
    programs = -(-lanes.lanes // (rows * (lanes.row or columns)))
    sizes = segments.numel, lanes.numel, lanes.num_bytes, lanes.lanes, last.num_bytes, last.lanes
    constants = {
        "BASE": lanes.base,
        "DIGITS": lanes.digits,
        "PARTS": lanes.parts,
        "ROW": lanes.row,
        "ROWS": rows,
        "COLUMNS": columns,
        "BLOCK": segments.block_size or 0,
        "SEARCHES": 0 if offsets is None else len(offsets).bit_length(),
        "IS_SHARDED": segments.shard_size is not None,
    }
    return (programs, len(segments.shards)), sizes, constants


@triton.jit
def shard_of(numel, size, num_bytes, num_lanes, last_bytes, last_lanes, BLOCK: tl.constexpr):
    """Where the entries, bytes and blocks of a program's shard begin (without blocks entries again), and how
    many entries, bytes and lanes it has: as many as others, unless it is the last.
    """
    shard = tl.program_id(1).to(tl.int64)
    begin, skipped = shard * size, shard * num_bytes
    first = shard * tl.cdiv(size, BLOCK) if BLOCK > 0 else begin
    is_last = shard == tl.num_programs(1) - 1
    num_bytes = tl.where(is_last, last_bytes, num_bytes)
    num_lanes = tl.where(is_last, last_lanes, num_lanes)
    return begin, skipped, first, tl.minimum(numel - begin, size), num_bytes, num_lanes


@triton.jit
def lane_places(num_lanes, ROW: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A program's first lane, in int64, how far all lie behind it, `[ROWS, COLUMNS]`, and which there are."""
    rows, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    if ROW > 0:
        base = tl.program_id(0).to(tl.int64) * (ROWS * ROW)
        place = rows * ROW + column
        there = (column < ROW) & (rows >= 0)
    else:
        base = tl.program_id(0).to(tl.int64) * (ROWS * COLUMNS)
        place = rows * COLUMNS + column
        there = place >= 0
    return base, place, there & are_before(place, num_lanes - base, ROWS, COLUMNS)


@triton.jit
def has_all(number, ROW: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Whether all places of a program are there and below a number in int64."""
    return (ROW == 0 or ROW == COLUMNS) & (number >= ROWS * COLUMNS)


@triton.jit
def are_before(place, number, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Which places are below a number in int64."""
    return place < tl.minimum(tl.maximum(number, 0), ROWS * COLUMNS).to(tl.int32)


@triton.jit
def _segment_at(entry, offsets_ptr, count, SEARCHES: tl.constexpr):
    """The segment of one entry, by halving the table."""
    own = entry * 0
    behind = own + count
    for _ in tl.static_range(SEARCHES):
        middle = (own + behind) // 2
        starts_before = tl.load(offsets_ptr + middle) <= entry
        own = tl.where(starts_before, middle, own)
        behind = tl.where(starts_before, behind, middle)
    return own


@triton.jit
def segment_of(
    start,
    place,
    inside,
    numel,
    first,
    offsets_ptr,
    count,
    ROW: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    SEARCHES: tl.constexpr,
):
    """The segment of each entry, or of each row if rows are blocks, and which of them there are.

    Blocks and, in a table, entries are counted from the first of a shard.
    """
    if ROW > 0:
        block = start // ROW + tl.arange(0, ROWS)
        own = first + block
        known = block * ROW < numel
    elif BLOCK > 0:
        own = first + (start + place) // BLOCK
        known = inside
    else:
        # Most often one segment has them all, so others are looked for one by one.
        end = first + tl.minimum(start + ROWS * COLUMNS, numel)
        start += first
        segment = _segment_at(start, offsets_ptr, count, SEARCHES)
        own = segment + place * 0
        behind = tl.load(offsets_ptr + segment + 1)  # where the next begins; of the last, the end of all
        while behind < end:
            own += (start + place >= behind).to(tl.int64)
            segment += 1
            behind = tl.load(offsets_ptr + segment + 1)
        known = inside
    return own, known


@triton.jit
def scale_of(scales_ptr, own, known, ROW: tl.constexpr):
    """The scale of each entry, or of each row, `[ROWS, 1]`."""
    scale = tl.load(scales_ptr + own, mask=known, other=0.0)
    if ROW > 0:
        scale = scale[:, None]
    return scale
