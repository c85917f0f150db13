"""Transforms of blocks of many tensors, of all that have equal sides at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relaxcomm.tensors.host_copies import on_device


@dataclass(frozen=True, eq=False)
class BlockBatches:
    """How blocks of equal sides come to lie behind each other, and back.

    It keeps two whole numbers of 32 bits an entry, so that a gather is one launch and no loop over tensors.

    Args:
        sides: of each batch, rows and columns of a block.
        gathered: `[numel]` the entry at each place in the batches.
        places: `[numel]` the place of each entry.
        lengths: of each batch, the entries.
        order: where, in the batches, what is in a message begins and ends, in the message's order.
        back: where, in a message, what is in the batches begins and ends, in their order.
    """

    sides: tuple[tuple[int, int], ...]
    gathered: Tensor
    places: Tensor
    lengths: tuple[int, ...]
    order: tuple[tuple[int, int], ...]
    back: tuple[tuple[int, int], ...]

    def transformed(self, flat: Tensor, transform: Callable[[Tensor], Tensor]) -> Tensor:
        """Each batch `[blocks, rows, columns]` of a tensor's entries, transformed, in a message's order."""
        return _cut(self._each(flat.index_select(0, self.gathered), transform), self.order)

    def restored(self, flat: Tensor, transform: Callable[[Tensor], Tensor]) -> Tensor:
        """The tensor of entries that are in a message's order, each batch transformed."""
        return self._each(_cut(flat, self.back), transform).index_select(0, self.places)

    def _each(self, together: Tensor, transform: Callable[[Tensor], Tensor]) -> Tensor:
        parts = zip(torch.split(together, list(self.lengths)), self.sides, strict=True)
        made = [transform(part.view(-1, *sides)).reshape(-1) for part, sides in parts]
        return made[0] if len(made) == 1 else torch.cat(made)


def batched(entries: Sequence[Tensor], device: torch.device) -> BlockBatches:
    """Batches of blocks.

    Args:
        entries: which entries of the tensor lie in the blocks of one region, `[..., rows, columns]`, in the
            message's order; together all of them, at least one.
        device: of the tensors.

    Example:
        >>> import torch
        >>> matrices = torch.arange(8).view(2, 2, 2), torch.arange(8, 10).view(1, 1, 2)
        >>> batches = batched([matrices[0][:1], matrices[1], matrices[0][1:]], torch.device("cpu"))
        >>> batches.gathered, batches.order
        (tensor([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], dtype=torch.int32), ((0, 4), (8, 10), (4, 8)))
    """
    alike: dict[tuple[int, int], list[int]] = {}
    for index, one in enumerate(entries):
        alike.setdefault((one.shape[-2], one.shape[-1]), []).append(index)
    regions = [index for held in alike.values() for index in held]
    gathered = torch.cat([entries[index].reshape(-1) for index in regions])
    kind = torch.int32 if gathered.numel() < 2**31 else torch.int64
    inside = dict(zip(regions, _runs([entries[index].numel() for index in regions]), strict=True))
    behind = _runs([one.numel() for one in entries])
    return BlockBatches(
        tuple(alike),
        on_device(gathered.to(kind), device),
        on_device(torch.argsort(gathered).to(kind), device),
        tuple(sum(entries[index].numel() for index in held) for held in alike.values()),
        tuple(inside[index] for index in range(len(entries))),
        tuple(behind[index] for index in regions),
    )


def _runs(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Where parts of such lengths begin and end."""
    found, start = [], 0
    for length in lengths:
        found.append((start, start + length))
        start += length
    return found


def _cut(flat: Tensor, runs: Sequence[tuple[int, int]]) -> Tensor:
    return flat if len(runs) == 1 else torch.cat([flat[start:stop] for start, stop in runs])
