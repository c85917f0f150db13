"""What a rank has issued, as a running digest: ranks that issued the same in the same order have the same."""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Any, TypeAlias

from relaxcomm.network.operations import Label, Operation

Entry: TypeAlias = "tuple[int, str]"
"""Which operation, counted from 0, and what it is."""

_Kind: TypeAlias = "tuple[type[Operation], str, int, int, Any, Any]"
_PRIME, _MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1
_REMEMBERED = 64
_MOST_LETTERS = 200


class Trail:
    """The collective operations of a rank; neighbours' count as they do not depend on who takes part.

    With `x` an operation's kind, place, shape and dtype as a number,
    `digest <- (digest + x + step) p mod 2^64`.
    """

    def __init__(self) -> None:
        self.count = 0
        """How many were issued."""
        self.digest = 0
        """The digest of all operations, in order."""
        self.events = 0
        """How often all ranks have met."""
        self._numbers: dict[_Kind, int] = {}
        self._recent: deque[tuple[int, _Kind]] = deque(maxlen=_REMEMBERED)

    def add(self, operation: Operation, label: Label) -> int:
        """Take note of an operation that is about to be issued; which one it is."""
        tensor = getattr(operation, "tensor", None)
        shape, dtype = (None, None) if tensor is None else (tensor.shape, tensor.dtype)
        kind = (operation.__class__, label.rule, label.unit, label.stage, shape, dtype)
        number = self._numbers.get(kind)
        if number is None:
            number = self._numbers[kind] = _number(_words(0, kind))
        self.digest = (self.digest + number + label.step) * _PRIME & _MASK
        self._recent.append((label.step, kind))
        self.count += 1
        return self.count - 1

    def recent(self) -> list[Entry]:
        """The last operations in words, the oldest first."""
        begin = self.count - len(self._recent)
        return [
            (begin + at, _words(step, kind)[:_MOST_LETTERS]) for at, (step, kind) in enumerate(self._recent)
        ]


def _number(words: str) -> int:
    return int.from_bytes(hashlib.blake2b(words.encode(), digest_size=8).digest(), "big")


def _words(step: int, kind: _Kind) -> str:
    operation, rule, unit, stage, shape, dtype = kind
    what = operation.__name__ if shape is None else f"{operation.__name__} {list(shape)} {dtype}"
    return f"{what} at {Label(step, rule, unit, stage)}"
