"""What a compressor hands to an exchange: an encoded tensor and how it may be combined.

A message kind says what the network may do with it. `dense` and `shared_support` messages can be
summed element by element in the network; all others must be gathered and decoded first.
"""

from __future__ import annotations

import functools
from abc import ABC
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from relaxcomm.packing import unpack_codes, unpack_places
from relaxcomm.segments import Blocks, Segments, chunk_size

DENSE = "dense"
SHARED_SUPPORT = "shared_support"
SPARSE = "sparse"
QUANTIZED = "quantized"
SIGNS = "signs"
MIXED = "mixed"
SUMMABLE = frozenset({DENSE, SHARED_SUPPORT})
ALL_KINDS = SUMMABLE | {SPARSE, QUANTIZED, SIGNS, MIXED}


@dataclass(frozen=True, eq=False)
class Message(ABC):
    """An encoded tensor; subclasses add tensors, or a message, and what is needed to decode them."""

    kind: ClassVar[str]

    def pack(self) -> Tensor:
        """The message as bytes, `[n]` uint8; n depends on nothing that ranks do not share."""
        packed = [_bytes(part) for _, part in self._parts()]
        return packed[0] if len(packed) == 1 else torch.cat(packed)

    def unpack(self, data: Tensor) -> Self:
        """A message like this one from the bytes of another rank's; longer data are cut."""
        found: dict[str, Tensor | Message] = {}
        start = 0
        for name, like in self._parts():
            if not isinstance(like, Tensor):
                found[name] = like.unpack(data[start:])  # the last one
                continue
            size = like.numel() * like.element_size()
            part = data[start : start + size]
            if part.storage_offset() % like.element_size():
                part = part.clone()
            found[name] = part.view(like.dtype).view(like.shape)
            start += size
        return replace(self, **found)

    @property
    def num_bytes(self) -> int:
        """Length of what `pack` returns."""
        return sum(
            part.num_bytes if isinstance(part, Message) else part.numel() * part.element_size()
            for _, part in self._parts()
        )

    def _parts(self) -> Iterator[tuple[str, Tensor | Message]]:
        """What is sent: the widest entries first, so that each part begins at a multiple of their size."""
        held = [(name, getattr(self, name)) for name in _names(type(self))]
        tensors = [(name, part) for name, part in held if isinstance(part, Tensor)]
        yield from sorted(tensors, key=lambda part: -part[1].element_size())
        if len(tensors) < len(held):
            yield from ((name, part) for name, part in held if isinstance(part, Message))


@functools.cache
def _names(kind: type[Message]) -> tuple[str, ...]:
    """Its fields; a message is taken apart dozens of times in an exchange."""
    return tuple(field.name for field in fields(kind))


def _bytes(part: Tensor | Message) -> Tensor:
    return part.contiguous().view(-1).view(torch.uint8) if isinstance(part, Tensor) else part.pack()


@dataclass(frozen=True, eq=False)
class Dense(Message):
    """Every entry, in order; an exchange may overwrite `tensor`."""

    kind: ClassVar[str] = DENSE
    tensor: Tensor


@dataclass(frozen=True, eq=False)
class SharedSupport(Dense):
    """Values of the same entries on all ranks, which each knows by itself; `tensor` holds them alone."""

    kind: ClassVar[str] = SHARED_SUPPORT


@dataclass(frozen=True, eq=False)
class Sparse(Message):
    """Some entries: the first `count` of `values` stand at the first `count` of `indices`.

    The places behind them are unused, so that a message's size is known before it is made and no
    rank needs to ask another, or its GPU, for it.

    Args:
        values: `[capacity]`.
        indices: `[capacity]` int32.
        count: `[1]` int32.
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
        count = int(self.count) if self.values.device.type == "cpu" else self.values.numel()
        values, indices = self.values[:count], self.places()[:count]
        if self.values.device.type != "cpu":  # without waiting for the count: what is unused adds nothing
            used = torch.arange(count, device=values.device) < self.count
            values, indices = torch.where(used, values, 0), torch.where(used, indices, 0)
        total.index_add_(0, indices, values.to(total.dtype), alpha=weight)


@dataclass(frozen=True, eq=False)
class BlockSparse(Sparse):
    """As many entries of each block, so that an index needs only to tell its place in the block.

    Args:
        indices: places in the blocks, all of which are used, as `pack_places` packs them.
        blocks: in the order of the indices.
    """

    blocks: tuple[Blocks, ...]

    def places(self) -> Tensor:
        found = unpack_places(self.indices, self.values.numel(), largest_block(self.blocks))
        return block_starts(self.blocks, self.indices.device) + found


@functools.lru_cache(maxsize=256)
def block_starts(blocks: tuple[Blocks, ...], device: torch.device) -> Tensor:
    """Where the block of each chosen entry begins, `[capacity]`."""
    starts = [
        torch.arange(run.start, run.stop, run.size, device=device).repeat_interleave(run.num_kept)
        for run in blocks
    ]
    return torch.cat([torch.empty(0, dtype=torch.int64, device=device), *starts])


@dataclass(frozen=True, eq=False)
class Coefficients(BlockSparse):
    """The same of a transform of the tensor."""

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


@dataclass(frozen=True, eq=False)
class Quantized(Message):
    """Every entry as one of a few evenly spaced levels of its segment.

    Entry = `low + code step`; without lows the levels lie around 0: `(code - (num_codes - 1) / 2) step`.

    Args:
        codes: `[packed_bytes(numel, num_codes)]` uint8.
        steps: `[segments.count]`, float32 or float64; NaN where a segment is not finite.
        lows: like `steps`, or empty.
        num_codes: 2 to 256.
        segments: which entries share a step.
    """

    kind: ClassVar[str] = QUANTIZED
    codes: Tensor
    steps: Tensor
    lows: Tensor
    num_codes: int
    segments: Segments

    def add_to(self, total: Tensor, weight: float) -> None:
        codes = unpack_codes(self.codes, self.segments.numel, self.num_codes)
        size = chunk_size(codes)
        buffer = torch.empty(min(size, codes.numel()), dtype=self.steps.dtype, device=codes.device)
        for group in self.segments.groups(size):
            steps, lows = group.scales(self.steps), group.scales(self.lows)
            for chunk in group.chunks(size):
                rows = chunk.rows(codes)
                levels = buffer[: rows.numel()].view(rows.shape).copy_(rows)
                if self.lows.numel():
                    levels.mul_(steps).add_(lows)
                else:
                    levels.sub_((self.num_codes - 1) / 2).mul_(steps)
                chunk.rows(total).add_(levels, alpha=weight)


@dataclass(frozen=True, eq=False)
class Signs(Quantized):
    """One bit an entry: plus or minus half a step."""

    kind: ClassVar[str] = SIGNS


@dataclass(frozen=True, eq=False)
class Several(Message):
    """Messages of different parts of a tensor."""

    kind: ClassVar[str] = MIXED
    messages: tuple[Message, ...]

    def unpack(self, data: Tensor) -> Several:
        found, start = [], 0
        for like in self.messages:
            found.append(like.unpack(data[start : start + like.num_bytes]))
            start += like.num_bytes
        return Several(tuple(found))

    def _parts(self) -> Iterator[tuple[str, Tensor | Message]]:
        yield from ((str(index), message) for index, message in enumerate(self.messages))


@dataclass(frozen=True, eq=False)
class Powers(Message):
    """Powers of two with their signs.

    Args:
        exponents: `[numel]` uint8, as in a float32; 255 stands for infinity, 0 for 0.
        signs: `[packed_bytes(numel, 2)]` uint8, 1 for negative.
    """

    kind: ClassVar[str] = QUANTIZED
    exponents: Tensor
    signs: Tensor

    def decoded(self) -> Tensor:
        """The numbers, `[numel]` float32."""
        signs = unpack_codes(self.signs, self.exponents.numel(), 2).to(torch.int32)
        return ((self.exponents.to(torch.int32) << 23) | (signs << 31)).view(torch.float32)
