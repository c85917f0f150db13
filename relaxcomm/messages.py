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
SUMMABLE = frozenset({DENSE, SHARED_SUPPORT})


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
