"""What a compressor hands to an exchange: an encoded tensor and how it may be combined.

A message kind says what the network may do with it. `dense` and `shared_support` messages can be
summed element by element in the network; all others must be gathered and decoded first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

DENSE = "dense"
SHARED_SUPPORT = "shared_support"
SUMMABLE = frozenset({DENSE, SHARED_SUPPORT})


@dataclass(frozen=True, eq=False)
class Message:
    """An encoded tensor; subclasses add what is needed to decode it."""

    kind: ClassVar[str]


@dataclass(frozen=True, eq=False)
class Dense(Message):
    """Every entry, in order; an exchange may overwrite `tensor`."""

    kind: ClassVar[str] = DENSE
    tensor: Tensor
