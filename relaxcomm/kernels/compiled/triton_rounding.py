"""Places between levels as whole numbers: the nearest one, or one that is drawn."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from relaxcomm.kernels.philox import Keys


def key_numbers(key: Keys | None) -> tuple[int | Tensor, int | Tensor]:
    """The two numbers of a key as a kernel takes them: 0 of none, the table of all shards' twice."""
    if key is None:
        return 0, 0
    return (key, key) if isinstance(key, Tensor) else key


@triton.jit
def shard_key(low_ptr, high_ptr):
    """The two numbers of the key of a program's shard."""
    shard = tl.program_id(1)
    return tl.load(low_ptr + 2 * shard), tl.load(high_ptr + 2 * shard + 1)


@triton.jit
def _word(lane, key_low, key_high, SLOT: tl.constexpr):
    """The random word of a slot; the compiler makes those of one counter together."""
    key = (key_high.to(tl.uint64) << 32) | key_low.to(tl.uint64)
    low, high = lane.to(tl.uint32), (lane >> 32).to(tl.uint32)
    none = low * 0
    w0, w1, w2, w3 = tl.philox(key, low, high, none + SLOT // 4, none)
    if SLOT % 4 == 0:
        word = w0
    elif SLOT % 4 == 1:
        word = w1
    elif SLOT % 4 == 2:
        word = w2
    else:
        word = w3
    return word


@triton.jit
def _drawn(place, zero, word, LAST: tl.constexpr, BITS: tl.constexpr, UPPER: tl.constexpr):
    """`floor(place + u)` in fixed point.

    With as many bits behind the point as `fraction_bits` gives, what is not 0 is a normal number: of a
    subnormal one a GPU's floor would make 0.
    """
    exact = place * (1 << BITS) + (word >> BITS).to(tl.float32) * UPPER
    exact = tl.minimum(tl.maximum(exact, -zero * (1 << BITS)), (LAST - zero) * (1 << BITS))
    fixed = tl.floor(exact).to(tl.int32)
    return ((fixed + (word & ((1 << BITS) - 1)).to(tl.int32)) >> BITS) + zero.to(tl.int32)


@triton.jit
def rounded(
    place,
    zero,
    lane,
    key_low,
    key_high,
    SLOT: tl.constexpr,
    IS_DRAWN: tl.constexpr,
    LAST: tl.constexpr,
    BITS: tl.constexpr,
    UPPER: tl.constexpr,
):
    """The codes of places, of which `zero` is that of place 0 and `LAST` the largest; NaN is at 0."""
    place = tl.where(place == place, place, 0.0)
    if IS_DRAWN:
        code = _drawn(place, zero, _word(lane, key_low, key_high, SLOT), LAST, BITS, UPPER)
    else:
        # So large a number that its last bit stands for 1: entries are rounded, their bits read.
        code = (place + (zero + 8388608.0)).to(tl.int32, bitcast=True) & 255
    return code
