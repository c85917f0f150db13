"""Exchanges: over what and with whom messages are combined."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from relaxcomm.frozen import frozen
from relaxcomm.messages import SUMMABLE, Dense, Message
from relaxcomm.operations import AllReduce
from relaxcomm.protocol import Compressor, Context, Exchange, Exchanging, Parts, State


@frozen
class all_reduce(Exchange):
    """The mean over all workers, reduced in the network: `(1/N) sum_n C(x_n)`.

    A ring sends `2 (N - 1) / N` times the message from each rank. Only summable messages can be
    reduced: sparse or quantised ones would add up indices or codes.

    Example:
        >>> all_reduce()
        all_reduce()
    """

    accepts: ClassVar[frozenset[str]] = SUMMABLE

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        coding = compressor.code(cx, tensor, state, keep_own=False)
        try:
            message: Message = next(coding)
            while True:
                assert isinstance(message, Dense), f"{compressor!r} yielded {message!r}"
                received = yield AllReduce(message.tensor, "mean")
                assert isinstance(received, Tensor)
                parts: Parts = ((1.0, Dense(received)),)
                message = coding.send(parts)
        except StopIteration as stop:
            result: Tensor = stop.value[0]
            return result

    def bytes_sent(self, message_bytes: int, world_size: int) -> float:
        return 2 * (world_size - 1) / world_size * message_bytes
