"""How exchanges bring back what becomes of a compressor's messages, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias

from torch import Tensor

from relaxcomm.network.operations import Operation, Received
from relaxcomm.roles import Coding, Compressor, Context, Exchanging, Parts, State
from relaxcomm.tensors.messages import Message, Sparse

Combining: TypeAlias = Generator[Operation, Received, Parts]
"""Yields the operations of one message, returns the parts that came back."""

Coded: TypeAlias = Generator[Operation, Received, tuple[Tensor, Tensor | Sparse | None]]
"""Yields the operations of all messages, returns what the coding does."""


def coded(coding: Coding, combine: Callable[[Message], Combining]) -> Coded:
    """Run a coding to its end.

    Args:
        coding: what `Compressor.encode_decode` has returned.
        combine: exchanges one message.
    """
    try:
        message = next(coding)
        while True:
            message = coding.send((yield from combine(message)))
    except StopIteration as stop:
        result: tuple[Tensor, Tensor | Sparse | None] = stop.value
        return result


def combined(
    cx: Context, tensor: Tensor, compressor: Compressor, state: State, combine: Callable[[Message], Combining]
) -> Exchanging:
    """What a tensor becomes by an exchange that does nothing but bring messages back."""
    result, _ = yield from coded(compressor.encode_decode(cx, tensor, state, keep_sent=False), combine)
    return result


def received(operation: Operation) -> Exchanging:
    """Yield an operation that brings one tensor, and return that."""
    tensor = yield operation
    assert isinstance(tensor, Tensor), f"{operation!r} brings no tensor"
    return tensor
