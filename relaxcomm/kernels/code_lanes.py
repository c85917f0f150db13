"""Where an entry's code lies in a message, and which random word rounds it."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from relaxcomm.kernels.philox import Key, philox
from relaxcomm.tensors.bit_packing import digit_layers
from relaxcomm.tensors.segments import Segments

WORDS = 4  # that one counter gives
ROUNDED = float(1 << 23)  # a float32 so large that its last bit stands for 1
LONGEST_ROW = 4096  # of blocks that are worked on whole
_ALIGNED = 16  # lanes: parts begin where a GPU can read several entries at once
_INT_BITS = 31  # of an int32 without its sign


@dataclass(frozen=True)
class CodeLanes:
    """How codes that share a byte, and random words that share a counter, come to the same program.

    A byte j holds the codes of entries `j`, `n + j`, ... of n bytes, one a digit, as `pack_codes` lays them.
    Where it holds fewer than four, the bytes are cut into `parts` of `lanes` bytes, and the bytes at the same
    place of each part go together: entry `r n + s lanes + l` is digit r of part s in lane l, rounded by
    word `(s digits + r) mod 4` of the counter `(l, (s digits + r) div 4)`.

    Args:
        numel: entries.
        base: numbers that a digit stands for.
        digits: codes in a byte.
        num_bytes: n.
        parts: that the bytes are cut into.
        lanes: bytes of a part.
        row: entries of a block that lie in as many lanes of one part, or 0 where they do not.
    """

    numel: int
    base: int
    digits: int
    num_bytes: int
    parts: int
    lanes: int
    row: int

    def words(self, key: Key, device: torch.device) -> Tensor:
        """The random word of each entry, `[numel]` int64 below `2^32`."""
        thirds = -(-self.parts * self.digits // WORDS)
        counters = torch.arange(thirds * self.lanes, device=device)
        words = torch.stack(philox(key, counters % self.lanes, counters // self.lanes)).view(-1)
        entries = torch.arange(self.numel, device=device)
        place = entries % self.num_bytes
        slots = place // self.lanes * self.digits + entries // self.num_bytes
        rows = slots % WORDS * thirds + slots // WORDS
        return words[rows * self.lanes + place % self.lanes]


def is_one_layer(num_codes: int) -> bool:
    """Whether codes are packed as they are made: of others the digits are packed apart.

    Example:
        >>> is_one_layer(16), is_one_layer(3), is_one_layer(32)
        (True, True, False)
    """
    return len(digit_layers(num_codes)) == 1


@functools.lru_cache(256)
def code_lanes(segments: Segments, num_codes: int) -> CodeLanes:
    """The lanes of a message; of one whose codes' digits are packed apart, those of a byte a code.

    Args:
        segments: of the tensor, with at least one entry.
        num_codes: 2 to 256.

    Example:
        >>> from relaxcomm.tensors.segments import Segments
        >>> lanes = code_lanes(Segments(100, block_size=8), num_codes=16)
        >>> lanes.digits, lanes.num_bytes, lanes.parts, lanes.lanes
        (2, 50, 2, 32)
    """
    base, digits = 256, 1
    if is_one_layer(num_codes):
        ((base, _, digits),) = digit_layers(num_codes)
    num_bytes = -(-segments.numel // digits)
    parts = max(1, WORDS // digits)
    block = segments.block_size
    row = block if digits == 1 and block is not None and block <= LONGEST_ROW else 0
    unit = row or _ALIGNED
    lanes = -(-num_bytes // (parts * unit)) * unit
    return CodeLanes(segments.numel, base, digits, num_bytes, parts, lanes, row)


def fraction_bits(num_codes: int, *, has_lows: bool) -> int:
    """Bits behind the point of a place in an int32; without lows places lie evenly around 0.

    Example:
        >>> fraction_bits(256, has_lows=True), fraction_bits(255, has_lows=False)
        (23, 24)
    """
    return _INT_BITS - (num_codes - 1 if has_lows else num_codes // 2).bit_length()
