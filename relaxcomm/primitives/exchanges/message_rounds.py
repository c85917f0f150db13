"""How exchanges bring back what becomes of a compressor's messages, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias

from torch import Tensor

from relaxcomm.network.operations import Operation, Received
from relaxcomm.roles import Compressor, Context, Exchanging, Parts, State
from relaxcomm.tensors.messages import Message, Sparse

Combining: TypeAlias = Generator[Operation, Received, Parts]
"""Yields the operations of one message, returns the parts that came back."""

Coded: TypeAlias = Generator[Operation, Received, tuple[Tensor, Tensor | Sparse | None]]
"""Yields the operations of all messages, returns what `encode_decode` does."""


def coded(
    cx: Context,
    tensor: Tensor,
    compressor: Compressor,
    state: State,
    combine: Callable[[Message], Combining],
    *,
    keep_sent: bool = False,
) -> Coded:
    """Encode a tensor, exchange its messages one after the other, and decode what comes back.

    Args:
        cx, tensor, compressor, state: as an exchange is given them.
        combine: exchanges one message.
        keep_sent: whether to return, too, what this worker's own messages decode to.
    """
    coding = compressor.encode_decode(cx, tensor, state, keep_sent=keep_sent)
    try:
        message = next(coding)
        while True:
            message = coding.send((yield from combine(message)))
    except StopIteration as stop:
        result: tuple[Tensor, Tensor | Sparse | None] = stop.value
        return result


def received(operation: Operation) -> Exchanging:
    """Yield an operation that brings one tensor, and return that."""
    tensor = yield operation
    assert isinstance(tensor, Tensor), f"{operation!r} brings no tensor"
    return tensor
