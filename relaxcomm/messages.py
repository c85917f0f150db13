"""What a compressor hands to an exchange: an encoded tensor and how it may be combined.

A message kind says what the network may do with it. `dense` and `shared_support` messages can be
summed element by element in the network; all others must be gathered and decoded first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

DENSE = "dense"
SHARED_SUPPORT = "shared_support"
SPARSE = "sparse"
SUMMABLE = frozenset({DENSE, SHARED_SUPPORT})
ALL_KINDS = SUMMABLE | {SPARSE}


@dataclass(frozen=True, eq=False)
class Message(ABC):
    """An encoded tensor; subclasses add what is needed to decode it."""

    kind: ClassVar[str]

    @abstractmethod
    def pack(self) -> Tensor:
        """The message as bytes, `[n]` uint8; n depends on nothing that ranks do not share."""

    @abstractmethod
    def unpack(self, data: Tensor) -> Message:
        """A message like this one from the bytes of another rank's; longer data are cut."""


@dataclass(frozen=True, eq=False)
class Dense(Message):
    """Every entry, in order; an exchange may overwrite `tensor`."""

    kind: ClassVar[str] = DENSE
    tensor: Tensor

    def pack(self) -> Tensor:
        return self.tensor.contiguous().view(-1).view(torch.uint8)

    def unpack(self, data: Tensor) -> Dense:
        size = self.tensor.numel() * self.tensor.element_size()
        part = data[:size]
        if part.storage_offset() % self.tensor.element_size():
            part = part.clone()
        return Dense(part.view(self.tensor.dtype).view(self.tensor.shape))


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

    def pack(self) -> Tensor:
        # The widest entries first, so that each part begins at a multiple of its entries' size.
        parts = (self.values, self.indices, self.count) if self.values.element_size() >= 4 else None
        parts = parts or (self.indices, self.count, self.values)
        return torch.cat([part.contiguous().view(torch.uint8) for part in parts])

    def unpack(self, data: Tensor) -> Sparse:
        if data.storage_offset() % 8:
            data = data.clone()
        wide = self.values.element_size() >= 4
        order = ("values", "indices", "count") if wide else ("indices", "count", "values")
        found, start = {}, 0
        for name in order:
            like: Tensor = getattr(self, name)
            size = like.numel() * like.element_size()
            found[name] = data[start : start + size].view(like.dtype)
            start += size
        return Sparse(**found)

    def add_to(self, total: Tensor, weight: float) -> None:
        """`total[indices] += weight values`; an index that comes twice counts twice."""
        count = int(self.count) if self.values.device.type == "cpu" else self.values.numel()
        values, indices = self.values[:count], self.indices[:count]
        if self.values.device.type != "cpu":  # without waiting for the count: what is unused adds nothing
            used = torch.arange(count, device=values.device) < self.count
            values, indices = torch.where(used, values, 0), torch.where(used, indices, 0)
        total.index_add_(0, indices, values.to(total.dtype), alpha=weight)


@dataclass(frozen=True, eq=False)
class SparseOf(Message):
    """A sparse message whose values are a message themselves.

    Args:
        values: of `[capacity]` values.
        indices: `[capacity]` int32.
        count: `[1]` int32.
    """

    kind: ClassVar[str] = SPARSE
    values: Message
    indices: Tensor
    count: Tensor

    def pack(self) -> Tensor:
        places = torch.cat([self.indices, self.count]).view(torch.uint8)
        return torch.cat([places, self.values.pack()])

    def unpack(self, data: Tensor) -> SparseOf:
        split = self.indices.element_size() * (self.indices.numel() + 1)
        places = data[:split].clone().view(self.indices.dtype)
        return SparseOf(self.values.unpack(data[split:]), places[:-1], places[-1:])
