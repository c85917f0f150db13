"""An encoded tensor as such, every entry in order, and several of them."""

from __future__ import annotations

import functools
import math
from abc import ABC
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

DENSE = "dense"
"""Every entry in order; messages can be summed in the network."""
SHARED_SUPPORT = "shared_support"
"""Some entries, the same ones on all workers; messages can be summed in the network."""
SPARSE = "sparse"
"""Some entries with their places, each worker's own."""
QUANTIZED = "quantized"
"""Every entry as one of a few levels of its segment."""
SIGNS = "signs"
"""The sign of every entry, and a size for each segment."""
MIXED = "mixed"
"""Messages of several kinds together."""
MAXIMUM = "maximum"
"""Entries of which the largest is wanted, not the sum."""
SUMMABLE = frozenset({DENSE, SHARED_SUPPORT})
ALL_KINDS = SUMMABLE | {SPARSE, QUANTIZED, SIGNS, MIXED}  # of which weighted sums are wanted


@dataclass(frozen=True, eq=False)
class Message(ABC):
    """An encoded tensor; subclasses add tensors, or a message, and what is needed to decode them.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import Dense
        >>> mine, theirs = Dense(torch.zeros(2)), Dense(torch.tensor([1.0, 2.0]))
        >>> mine.unpack(theirs.pack()).tensor, theirs.num_bytes
        (tensor([1., 2.]), 8)
    """

    kind: ClassVar[str]

    def pack(self) -> Tensor:
        """The message as bytes, `[n]` uint8; n depends on nothing that ranks do not share."""
        packed = self._pieces()
        return packed[0] if len(packed) == 1 else torch.cat(packed)

    def _pieces(self) -> list[Tensor]:
        return [piece for _, part in self._parts() for piece in pieces(part)]

    def unpack(self, data: Tensor) -> Self:
        """A message like this one from the bytes of another rank's; longer data are cut."""
        found: dict[str, Tensor | Message] = {}
        start = 0
        for name, like in self._parts():
            if not isinstance(like, Tensor):
                found[name] = like.unpack(data[start:])  # the last one
                continue
            size = like.nbytes
            part = data[start : start + size]
            if part.storage_offset() % like.element_size():
                part = part.clone()
            found[name] = part.view(like.dtype).view(like.shape)
            start += size
        return replace(self, **found)

    @property
    def widest(self) -> int:
        """Bytes of its widest numbers."""
        parts = [part for _, part in self._parts()]
        sizes = (part.widest if isinstance(part, Message) else part.element_size() for part in parts)
        return max(sizes, default=1)

    @property
    def num_bytes(self) -> int:
        """Length of what `pack` returns."""
        return sum(part.num_bytes if isinstance(part, Message) else part.nbytes for _, part in self._parts())

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


def pieces(part: Tensor | Message) -> list[Tensor]:
    """What `pack` puts one behind the other, without a copy of it, unless a message packs itself."""
    if isinstance(part, Message):
        return part._pieces() if type(part).pack is Message.pack else [part.pack()]
    return [part.contiguous().view(-1).view(torch.uint8)]


@dataclass(frozen=True, eq=False)
class Dense(Message):
    """Every entry, in order; an exchange may overwrite `tensor`.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import Dense
        >>> Dense(torch.tensor([1.0, 2.0])).pack().shape
        torch.Size([8])
    """

    kind: ClassVar[str] = DENSE
    tensor: Tensor


@dataclass(frozen=True, eq=False)
class SharedSupport(Dense):
    """Values of the same entries on all ranks, which each knows by itself; `tensor` holds them alone.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import SharedSupport
        >>> drawn = torch.tensor([1, 3])  # by all ranks alike
        >>> x = torch.tensor([5.0, 6.0, 7.0, 8.0])
        >>> message = SharedSupport(x[drawn])
        >>> torch.zeros(4).index_copy(0, drawn, message.tensor), message.num_bytes
        (tensor([0., 6., 0., 8.]), 8)
    """

    kind: ClassVar[str] = SHARED_SUPPORT


@dataclass(frozen=True, eq=False)
class Maximum(Dense):
    """Entries of which all ranks get the largest, one by one, such as a scale that all are to share.

    `all_reduce` and `all_gather` combine it. NaN counts as infinity, so that no rank's is hidden. Workers
    that agree on a maximum m first can take means of what would overflow without it, such as
    `m + log(mean_n exp(x_n - m))`.

    Args:
        tensor: the entries; an exchange may overwrite them.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import Maximum
        >>> parts = [(0.5, Maximum(torch.tensor([1.0, 5.0]))), (0.5, Maximum(torch.tensor([3.0, -2.0])))]
        >>> Maximum.of(parts)
        tensor([3., 5.])
    """

    kind: ClassVar[str] = MAXIMUM

    def ordered(self) -> Tensor:
        """The entries without NaN, which a maximum over a network may or may not keep."""
        if not self.tensor.is_floating_point():
            return self.tensor
        return self.tensor.masked_fill(self.tensor.isnan(), math.inf)

    @staticmethod
    def of(parts: Sequence[tuple[float, Message]]) -> Tensor:
        """The largest entries of what came back, whatever the weights: one part, or one a worker."""
        largest: Tensor | None = None
        for _, message in parts:
            assert isinstance(message, Maximum), f"expected a maximum, got {message!r}"
            largest = message.ordered() if largest is None else torch.maximum(largest, message.ordered())
        assert largest is not None, "an exchange sent back no part"
        return largest


@dataclass(frozen=True, eq=False)
class Several(Message):
    """Messages that travel as one, such as of different parts of a tensor.

    Args:
        messages: the same kinds and sizes on all ranks, in the same order.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import Dense, Several
        >>> both = Several((Dense(torch.ones(2)), Dense(torch.zeros(1))))
        >>> both.num_bytes, both.unpack(both.pack()).messages[0].tensor
        (12, tensor([1., 1.]))
    """

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
