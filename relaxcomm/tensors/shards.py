"""A flat tensor cut into one shard a rank, each coded on its own."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from relaxcomm.tensors.layout import Layout


def shard_sizes(numel: int, num_shards: int) -> list[int]:
    """Entries in each shard: equal but for the last ones, which may be smaller or empty.

    Example:
        >>> shard_sizes(10, 4)
        [3, 3, 3, 1]
    """
    size = -(-numel // num_shards)
    return [max(0, min(size, numel - index * size)) for index in range(num_shards)]


def shards_of(tensor: Tensor, num_shards: int) -> list[tuple[int, Tensor]]:
    """Where each shard of a flat tensor begins, and the shard."""
    sizes = shard_sizes(tensor.numel(), num_shards)
    return list(zip(accumulate(sizes, initial=0), torch.split(tensor, sizes), strict=False))


def shard_bucket(
    bucket: Bucket, layout: Layout, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> Bucket:
    """A bucket like `bucket` of such tensors, without memory: for `init` of a shard."""
    nothing = torch.empty((), dtype=dtype or bucket.dtype, device=device or bucket.device)
    spans = layout.spans() if layout.numel else iter([("", torch.Size([0]), 0)])
    return Bucket(bucket.index, [Item(name, nothing.expand(shape)) for name, shape, _ in spans])


def shard_layouts(layout: Layout, num_shards: int) -> list[Layout]:
    """Which tensors lie in each shard of a layout."""
    sizes = shard_sizes(layout.numel, num_shards)
    starts = accumulate(sizes, initial=0)
    return [layout.part(start, size) for start, size in zip(starts, sizes, strict=False)]


class NestedState(MutableMapping[str, Tensor]):
    """The slots of one part among those of all, called `index.slot`: of a shard, or of what is wrapped."""

    def __init__(self, slots: MutableMapping[str, Tensor], index: int) -> None:
        self._slots, self._prefix = slots, f"{index}."

    def __getitem__(self, slot: str) -> Tensor:
        return self._slots[self._prefix + slot]

    def __setitem__(self, slot: str, value: Tensor) -> None:
        self._slots[self._prefix + slot] = value

    def __delitem__(self, slot: str) -> None:
        del self._slots[self._prefix + slot]

    def __iter__(self) -> Iterator[str]:
        return (slot.removeprefix(self._prefix) for slot in self._slots if slot.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class JoinedState(MutableMapping[str, Tensor]):
    """The slots of all shards, those of the same name as one tensor in flat order."""

    def __init__(self, slots: MutableMapping[str, Tensor], num_shards: int) -> None:
        self._shards = [NestedState(slots, index) for index in range(num_shards)]

    def __getitem__(self, slot: str) -> Tensor:
        held = [shard[slot] for shard in self._shards]
        together = joined_view(held)
        if together is None:
            self[slot] = together = torch.cat(held)  # from now on they lie one behind the other
        return together

    def __setitem__(self, slot: str, value: Tensor) -> None:
        for shard, (_, own) in zip(self._shards, shards_of(value, len(self._shards)), strict=True):
            shard[slot] = own

    def __delitem__(self, slot: str) -> None:
        for shard in self._shards:
            del shard[slot]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards[0])

    def __len__(self) -> int:
        return len(self._shards[0])


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Flat tensors as one, or the only tensor; a copy only where they do not lie one behind the other."""
    if len(tensors) == 1:
        return tensors[0]
    together = joined_view(tensors)
    return torch.cat(list(tensors)) if together is None else together


def joined_view(tensors: Sequence[Tensor]) -> Tensor | None:
    """Flat tensors as one without a copy; None where they do not lie one behind the other.

    Example:
        >>> import torch
        >>> memory = torch.arange(5)
        >>> joined_view([memory[:2], memory[2:]]), joined_view([memory[:2], memory[3:]])
        (tensor([0, 1, 2, 3, 4]), None)
    """
    first = tensors[0]
    memory, end = first.untyped_storage().data_ptr(), first.storage_offset()
    for one in tensors:
        is_alike = one.stride() == (1,) and one.dtype == first.dtype
        if not is_alike or one.storage_offset() != end or one.untyped_storage().data_ptr() != memory:
            return None
        end += one.numel()
    return first.as_strided((end - first.storage_offset(),), (1,))
