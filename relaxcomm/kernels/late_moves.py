"""Results that come late: what they move parameters that have moved on meanwhile."""

from __future__ import annotations

import torch
from torch import Tensor

from relaxcomm.kernels.dispatch import uses_numba
from relaxcomm.tensors.buckets import Bucket

_LARGE = 1 << 14  # entries for which a call of their own is worth it


def add_difference(bucket: Bucket, flat: Tensor, other: Tensor) -> None:
    """Add `flat - other` to the tensors of a bucket, in one pass where loops are compiled.

    It is made as `flat - (other - tensor)`: what has not moved since `other` becomes `flat` to the bit.

    Args:
        bucket: whose tensors.
        flat: `[numel]`.
        other: `[numel]`, of the tensors' type; its memory may be overwritten.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import Bucket, Item
        >>> weight = torch.tensor([1.0, 2.0])
        >>> add_difference(Bucket(0, [Item("weight", weight)]), torch.tensor([5.0, 7.0]), torch.ones(2))
        >>> weight
        tensor([5., 8.])
    """
    is_plain = bucket.is_dense and flat.dtype == bucket.dtype == torch.float32
    has_large = any(item.tensor.numel() >= _LARGE for item in bucket.items)
    if not (is_plain and has_large and uses_numba(flat)):
        bucket.scatter(torch.sub(flat, bucket.subtract_from(other, out=other), out=other))
        return
    from relaxcomm.kernels.compiled import numba_late_moves

    small: list[tuple[Tensor, Tensor, Tensor]] = []
    for start, tensor in bucket.flat_tensors:
        here = slice(start, start + tensor.numel())
        if tensor.numel() < _LARGE:
            small.append((tensor, flat[here], other[here]))
        else:
            torch.autograd.graph.increment_version(tensor)
            numba_late_moves.add_difference(tensor.numpy(), flat[here].numpy(), other[here].numpy())
    if small:
        tensors, ones, others = zip(*small, strict=True)
        torch._foreach_copy_(tensors, torch._foreach_sub(ones, torch._foreach_sub(others, tensors)))
