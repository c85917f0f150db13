"""Some entries of a tensor, and their places."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.tensors.bit_packing import unpack_places
from relaxcomm.tensors.host_copies import kept_per_stream
from relaxcomm.tensors.messages.message import SPARSE, Message
from relaxcomm.tensors.segments import Blocks, chunk_size

MOST_PLACES = torch.iinfo(torch.int32).max
"""Entries of a tensor, of which an index still tells each place."""
_FEW = 400  # entries of a tensor for one of a message, above which a range of the cache holds too few


@dataclass(frozen=True, eq=False)
class Range:
    """The sent ones of the entries from `start` to `stop` of a tensor.

    Places count from offsets, which count from `start`; without offsets the places do so themselves.
    """

    start: int
    stop: int
    places: Tensor
    values: Tensor
    offsets: Tensor | None = None

    def of(self, flat: Tensor) -> Tensor:
        """The entries of a tensor that lie in this range, sent or not."""
        return flat[self.start : self.stop]

    def add_to(self, total: Tensor, weight: float) -> None:
        """Add what is sent to the tensor."""
        indices = self.places
        if self.offsets is not None:  # copied first: adding tensors of two types makes another one in between
            indices = torch.empty_like(self.offsets).copy_(indices).add_(self.offsets)
        self.of(total).index_add_(0, indices, self.values.to(total.dtype), alpha=weight)


@dataclass(frozen=True, eq=False)
class Sparse(Message):
    """Some entries: the first `count` of `values` stand at the first `count` of `indices`.

    The places behind them are unused, so that a message's size is known before it is made and no
    rank needs to ask another, or its GPU, for it.

    Args:
        values: `[capacity]`.
        indices: `[capacity]` int32, of a tensor of at most `MOST_PLACES` entries.
        count: `[1]` int32.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import Sparse
        >>> message = Sparse(
        ...     values=torch.tensor([5.0, 7.0, 0.0]),
        ...     indices=torch.tensor([1, 3, 0], dtype=torch.int32),
        ...     count=torch.tensor([2], dtype=torch.int32),
        ... )
        >>> total = torch.ones(4)
        >>> message.add_to(total, weight=0.5)
        >>> total
        tensor([1.0000, 3.5000, 1.0000, 4.5000])
    """

    kind: ClassVar[str] = SPARSE
    values: Tensor
    indices: Tensor
    count: Tensor

    is_direct: ClassVar[bool] = True  # adds up to the tensor itself, and not to what it was made into

    def places(self) -> Tensor:
        """Where the values stand, `[capacity]`."""
        return self.indices

    def add_to(self, total: Tensor, weight: float) -> None:
        """`total[indices] += weight values`; an index that comes twice counts twice."""
        for one in self.ranges(total):
            one.add_to(total, weight)

    def erase_in(self, tensor: Tensor) -> None:
        """`tensor[indices] = 0`."""
        indices = self.places()
        if tensor.device.type == "cpu":
            tensor.index_fill_(0, indices[: int(self.count)].long(), 0)
            return
        # Without waiting for the count: what is unused stands behind the tensor.
        indices = torch.where(_numbers(indices) < self.count, indices, tensor.numel())
        is_sent = torch.zeros(tensor.numel() + 1, dtype=torch.bool, device=tensor.device)
        tensor.masked_fill_(is_sent.index_fill_(0, indices.long(), True)[:-1], 0)

    def ranges(self, like: Tensor) -> Iterator[Range]:
        """What is sent of each range of a tensor; the ranges are the same for all messages of an exchange."""
        if self.values.device.type != "cpu":  # without waiting for the count: what is unused adds nothing
            indices = self.places()
            places = _numbers(indices)
            used = places < self.count
            # Each at a place of its own: many additions at one place take turns.
            values, indices = torch.where(used, self.values, 0), torch.where(used, indices, places)
            yield Range(0, like.numel(), indices, values)
            return
        values, indices = self.values[: int(self.count)], self.places()[: int(self.count)]
        size = chunk_size(like)
        if _FEW * self.values.numel() < like.numel() or like.numel() <= size:
            yield Range(0, like.numel(), indices, values)
            return
        if not bool((indices[1:] >= indices[:-1]).all()):
            indices, order = torch.sort(indices, stable=True)
            values = values[order]
        starts = torch.arange(0, like.numel(), size, dtype=indices.dtype)
        cuts = [*torch.searchsorted(indices, starts).tolist(), indices.numel()]
        for start, (first, last) in zip(starts.tolist(), itertools.pairwise(cuts), strict=True):
            stop = min(start + size, like.numel())
            yield Range(start, stop, indices[first:last] - start, values[first:last])


@dataclass(frozen=True, eq=False)
class BlockSparse(Sparse):
    """A fixed number of entries of each block, so that an index needs only to tell its place in the block.

    Args:
        indices: places in the blocks, all of which are used, as `pack_places` packs them.
        blocks: in the order of the indices.
    """

    blocks: tuple[Blocks, ...]

    def places(self) -> Tensor:
        return block_starts(self.blocks, self.indices.device) + self._in_blocks()

    def ranges(self, like: Tensor) -> Iterator[Range]:
        cuts, starts = _bounds(self.blocks, like.numel(), chunk_size(like), like.device)
        places = self._in_blocks()
        for (start, first), (stop, last) in itertools.pairwise(cuts):
            here = slice(first, last)
            yield Range(start, stop, places[here], self.values[here], starts[here])

    def _in_blocks(self) -> Tensor:
        return unpack_places(self.indices, self.values.numel(), largest_block(self.blocks))


def _numbers(indices: Tensor) -> Tensor:
    """0, 1, 2 and so on, one for each."""
    return torch.arange(indices.numel(), dtype=indices.dtype, device=indices.device)


@kept_per_stream(256)
def block_starts(blocks: tuple[Blocks, ...], device: torch.device) -> Tensor:
    """Where the block of each chosen entry begins, `[capacity]`, in int32 if it can hold all places."""
    dtype = torch.int32 if all(run.stop <= MOST_PLACES for run in blocks) else torch.int64
    starts = [
        torch.arange(run.start, run.stop, run.size, dtype=dtype, device=device).repeat_interleave(
            run.num_kept
        )
        for run in blocks
    ]
    return torch.cat([torch.empty(0, dtype=dtype, device=device), *starts])


@kept_per_stream(256)
def _bounds(
    blocks: tuple[Blocks, ...], numel: int, size: int, device: torch.device
) -> tuple[tuple[tuple[int, int], ...], Tensor]:
    """Ranges of a tensor of at most about `size` entries, and `block_starts` from the beginning of each on.

    Returns: where each range begins, and the number of chosen entries before it, then both at the end; and
        the starts, `[capacity]`.
    """
    cuts, end, last = [(0, 0)], 0, 0
    for part in itertools.chain.from_iterable(run.parts(size) for run in blocks):
        if cuts[-1][0] < end and part.stop - cuts[-1][0] > size:
            cuts.append((end, last))
        end, last = part.stop, last + part.num * part.num_kept
    cuts.append((numel, last))
    starts = block_starts(blocks, device).clone()
    for (begin, first), (_, after) in itertools.pairwise(cuts):
        starts[first:after] -= begin
    return tuple(cuts), starts


@dataclass(frozen=True, eq=False)
class Coefficients(BlockSparse):
    """Entries of each block of a transform of the tensor."""

    is_direct: ClassVar[bool] = False


def largest_block(blocks: Sequence[Blocks]) -> int:
    """Entries of the largest block: below that lie all places."""
    return max((run.size for run in blocks), default=1)


@dataclass(frozen=True, eq=False)
class SparseOf(Message):
    """A sparse message whose values are a message themselves.

    Args:
        values: of `[capacity]` values.
        indices: as that message has them.
        count: `[1]` int32.
    """

    kind: ClassVar[str] = SPARSE
    values: Message
    indices: Tensor
    count: Tensor
