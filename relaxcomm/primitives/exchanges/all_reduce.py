"""The mean, reduced in the network."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.network.operations import AllReduce
from relaxcomm.roles import Compressor, Context, Exchange, ExchangeFacts, Exchanging, Parts, State
from relaxcomm.tensors.messages import MAXIMUM, SUMMABLE, Dense, Maximum, Message
from relaxcomm.topology import Topology


@frozen
class all_reduce(Exchange):
    """The mean over all workers, reduced in the network: `(1/N) sum_n C(x_n)`.

    A ring sends `2 (N - 1) / N` times the message from each rank. Only summable messages can be
    reduced: sparse or quantised ones would add up indices or codes. Of messages that ask for a maximum the
    largest entries come back.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import all_reduce, parameters
        >>> rule = Rule(payload=parameters(), exchange=all_reduce())
        >>> trajectory(rule, [[1.0, 2.0, 6.0]])
        tensor([[3., 3., 3.]])
    """

    facts: ClassVar[ExchangeFacts] = ExchangeFacts(
        accepts=SUMMABLE | {MAXIMUM},
        collective=True,
        same_result=True,
        operations=1,
        several_rounds=True,
        returns="mean",
        topology="complete",
        needs_fixed_graph=False,
        follows_parameters=False,
        memory="none",
        takes_divided=True,
        applies_outer=False,
        slots={},
        coding="whole",
        service={},
    )

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        coding = compressor.encode_decode(cx, tensor, state, keep_sent=False)
        try:
            message: Message = next(coding)
            while True:
                assert isinstance(message, Dense), f"{compressor!r} yielded {message!r}"
                if isinstance(message, Maximum):
                    received = yield AllReduce(message.ordered(), "max")
                else:
                    received = yield AllReduce(message.tensor, "sum" if cx.divided else "mean")
                assert isinstance(received, Tensor)
                in_place = received is message.tensor
                parts: Parts = ((1.0, message if in_place else replace(message, tensor=received)),)
                message = coding.send(parts)
        except StopIteration as stop:
            result: Tensor = stop.value[0]
            return result

    def bytes_sent(self, message_bytes: int, world_size: int, topology: Topology) -> float:
        return 2 * (world_size - 1) / world_size * message_bytes
