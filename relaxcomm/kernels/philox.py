"""Random numbers that are a function of a key and a counter, the same on every device."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

Key = tuple[int, int]
"""Two whole numbers of 31 bits."""
Keys: TypeAlias = Key | Tensor
"""A key, or one for each shard, `[shards, 2]` int32."""
_ROUNDS = 10
_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def key_of(number: int) -> Key:
    """A key from any whole number; only its last 62 bits count.

    Example:
        >>> key_of(5), key_of(1 << 31)
        ((5, 0), (0, 1))
    """
    return number & 0x7FFFFFFF, (number >> 31) & 0x7FFFFFFF


def philox(key: Key, lanes: Tensor, thirds: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox-4x32-10: four words of 32 random bits for each counter `(lane, third)`.

    Ten rounds of `(c0, c1, c2, c3) <- (hi(B c2) ^ c1 ^ k0, lo(B c2), hi(A c0) ^ c3 ^ k1, lo(A c0))`.

    Args:
        key: by which numbers differ from step to step and from rank to rank.
        lanes: `[n]` int64, 0 or more.
        thirds: `[n]` int64, below `2^32`: the third word of each counter, behind the lane's two.

    Returns: four tensors `[n]` int64, each below `2^32`.

    Example:
        >>> import torch
        >>> [word.item() for word in philox((0, 0), *torch.zeros(2, 1).long())]
        [1713891541, 3781805453, 3159862348, 2600524760]

    Reference: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
    """
    c0, c1 = lanes & _MASK, lanes >> 32
    c2, c3 = thirds, torch.zeros_like(lanes)
    k0, k1 = key
    for _ in range(_ROUNDS):
        high_a, low_a = _product(c0, _MULTIPLIERS[0])
        high_b, low_b = _product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high_b ^ c1 ^ k0, low_b, high_a ^ c3 ^ k1, low_a
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def _product(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The upper and the lower 32 bits of a product of 64, of which an int64 has one too few."""
    low, high = (word & 0xFFFF) * factor, (word >> 16) * factor
    middle = high + (low >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (low & 0xFFFF)
