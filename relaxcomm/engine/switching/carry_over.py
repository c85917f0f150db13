"""What is kept for parameters moves with them, when they come to lie in other buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from torch import Tensor

from relaxcomm.tensors.buckets import Bucket

Kept: TypeAlias = tuple[Bucket, Mapping[str, Tensor]]
"""A bucket and slots for it."""


def carried_over(name: str, fresh: Tensor, bucket: Bucket, before: Sequence[Kept]) -> tuple[Tensor, set[str]]:
    """A slot with what older ones of that name hold for the same parameters.

    Only a slot with an entry for each of the bucket's can be moved.

    Args:
        name: of the slot.
        fresh: as `init` made it.
        bucket: whose slot it is.
        before: older buckets with their slots.

    Returns: the slot, and the names of the bucket's parameters that were found.
    """
    if fresh.numel() != bucket.numel:
        return fresh, set()
    tensors = [item.tensor for item in bucket.items]
    for old, slots in reversed(before):
        kept = slots.get(name)
        lies_alike = old.holds(tensors) and old.strides == bucket.strides
        if kept is not None and _looks_like(kept, fresh) and lies_alike:
            return kept, set(bucket.names)  # nobody needs the old one any more
    olds: dict[Tensor, Tensor] = {}
    for old, slots in before:
        kept = slots.get(name)
        if kept is not None and kept.numel() == old.numel:
            olds.update({item.tensor: part for item, part in zip(old.items, old.views(kept), strict=True)})
    result, found = fresh.clone(), set()
    for view, item in zip(bucket.views(result), bucket.items, strict=True):
        if item.tensor in olds:
            view.copy_(olds[item.tensor])
            found.add(item.name)
    return result, found


def _looks_like(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
