"""What several ranks hold, as one or as a mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from relaxcomm.network.transport import Membership


def mean(tensors: Sequence[Tensor], weights: Sequence[float] | None = None) -> Tensor:
    """The weighted mean, summed in float64; tensors that are equal come out bit for bit.

    Args:
        tensors: of one shape and dtype.
        weights: of each, in all 1; equal ones if None. What weighs nothing is not looked at.

    Example:
        >>> mean([torch.tensor([1.0, 2.0]), torch.tensor([4.0, 2.0])], weights=[1 / 3, 2 / 3])
        tensor([3., 2.])
    """
    shares = [1 / len(tensors)] * len(tensors) if weights is None else weights
    held = [(share, one) for share, one in zip(shares, tensors, strict=True) if share]
    first = held[0][1]
    if all(torch.equal(one, first) for _, one in held):
        return first
    wider = torch.promote_types(first.dtype, torch.float64)
    total = torch.zeros_like(first, dtype=wider)
    for share, one in held:
        total.add_(one.to(wider), alpha=share)
    exact = first.is_floating_point() or first.is_complex()
    return (total if exact else total.round()).to(first.dtype)


def shares(before: int, membership: Membership) -> list[float]:
    """How much a new rank takes of each old one, so that the mean of all stays.

    Old and new ranks lie side by side on one line of length 1, each on an equal piece; a new rank takes the
    mean of what lies on its own.

    Args:
        before: number of old ranks.
        membership: the new rank among the new ones.

    Example:
        >>> shares(4, Membership(rank=1, world_size=2))
        [0.0, 0.0, 0.5, 0.5]
        >>> [[round(share, 2) for share in shares(2, Membership(rank, 3))] for rank in range(3)]
        [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    """
    rank, size = membership.rank, membership.world_size  # in pieces of 1 / (before * size)
    begin, end = rank * before, (rank + 1) * before
    common = [max(0, min(end, (old + 1) * size) - max(begin, old * size)) for old in range(before)]
    return [one / before for one in common]


def same(one: Any, other: Any) -> bool:
    """Whether two nested states are equal, bit for bit.

    Example:
        >>> same({"a": [torch.ones(2), 1]}, {"a": [torch.ones(2), 1]}), same([1], [1.5])
        (True, False)
    """
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one is other or (one.dtype == other.dtype and torch.equal(one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(type(one) is type(other) and one == other)
