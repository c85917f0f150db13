"""Exchanges that gather messages, which need not be summable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.network.operations import AllGather
from relaxcomm.primitives.exchanges.all_reduce import all_reduce
from relaxcomm.primitives.exchanges.message_rounds import Combining, coded
from relaxcomm.primitives.exchanges.message_rows import received_rows
from relaxcomm.roles import Compressor, Context, Exchange, ExchangeFacts, Exchanging, Stage, State
from relaxcomm.tensors.messages import ALL_KINDS, MAXIMUM, Message
from relaxcomm.topology import Topology


@frozen
class all_gather(Exchange):
    """Every worker gets every message and combines them itself: `(1/N) sum_n C(x_n)`.

    A rank sends its message `N - 1` times. Messages have a size that all ranks know, so no sizes are
    exchanged.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import all_gather, error_feedback, gradients, top_k
        >>> compressor = error_feedback(compressor=top_k(density=0.5))
        >>> rule = Rule(payload=gradients(), compressor=compressor, exchange=all_gather())
        >>> trajectory(rule, [[[3.0, 1.0], [2.0, 9.0]]])
        tensor([[[1.5000, 4.5000],
                 [1.5000, 4.5000]]])
    """

    facts: ClassVar[ExchangeFacts] = replace(
        all_reduce.facts, accepts=ALL_KINDS | {MAXIMUM}, takes_divided=False
    )

    def takes_difference(self, compressor: Compressor, tensor: Tensor) -> bool:
        return compressor.makes_difference(tensor)

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        result, _ = yield from coded(cx.at(out=tensor), tensor, compressor, state, _gathered)
        return result

    def stages(self, world_size: int, topology: Topology) -> Sequence[Stage]:
        return [Stage(AllGather)]


def _gathered(message: Message) -> Combining:
    """The messages of all ranks, each with an equal weight."""
    rows = yield from received_rows(AllGather(message.pack()), message)
    return [(1 / len(rows), message.unpack(row)) for row in rows]
