"""The mean, reduced in the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from relaxcomm.fields.frozen import frozen
from relaxcomm.network.operations import AllGather, AllReduce, AllToAll
from relaxcomm.network.transport import Membership
from relaxcomm.primitives.exchanges.message_rounds import Combining, coded, received
from relaxcomm.roles import Compressor, Context, Exchange, ExchangeFacts, Exchanging, Stage, State
from relaxcomm.tensors.messages import MAXIMUM, SUMMABLE, Dense, Maximum, Message
from relaxcomm.tensors.precision import HALVES, wide
from relaxcomm.tensors.shards import shards_of
from relaxcomm.topology import Topology


@frozen
class all_reduce(Exchange):
    """The mean over all workers, reduced in the network: `(1/N) sum_n C(x_n)`.

    A ring sends `2 (N - 1) / N` times the message from each rank. Only summable messages can be
    reduced: sparse or quantised ones would add up indices or codes. Of messages that ask for a maximum the
    largest entries come back. Of parameters in float16 or bfloat16 each rank sums one part in float32: a ring
    would round after each term, and move even what all agree on.

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
        result, _ = yield from coded(cx, tensor, compressor, state, partial(_reduced, cx))
        return result

    def stages(self, world_size: int, topology: Topology) -> Sequence[Stage]:
        return [Stage(AllReduce)]

    def exact_stages(self, world_size: int, topology: Topology) -> Sequence[Stage]:
        return super().exact_stages(world_size, topology) if world_size <= 2 else in_parts(world_size)


def in_parts(world_size: int) -> Sequence[Stage]:
    """Each rank gets its part of all messages, and all get what becomes of it."""
    return [Stage(AllToAll), Stage(AllGather, share=1 / world_size)]


def _reduced(cx: Context, message: Message) -> Combining:
    """The mean of a message, or its largest entries."""
    assert isinstance(message, Dense), "no others are accepted"
    if isinstance(message, Maximum):
        total = yield from received(AllReduce(message.ordered(), "max"))
    else:
        total = yield from _mean(cx, message.tensor)
    in_place = total is message.tensor
    return ((1.0, message if in_place else replace(message, tensor=total)),)


def _mean(cx: Context, tensor: Tensor) -> Exchanging:
    if cx.exact and tensor.dtype in HALVES and cx.membership.world_size > 2:  # halves of two are exact
        return (yield from _mean_in_parts(tensor, cx.membership))
    return (yield from received(AllReduce(tensor, "sum" if cx.divided else "mean")))


def _mean_in_parts(tensor: Tensor, membership: Membership) -> Exchanging:
    """The mean, rounded once: each rank sums one part, and sends as much as in a ring."""
    shards = [shard for _, shard in shards_of(tensor.flatten(), membership.world_size)]
    rows = yield from received(AllToAll(pad_sequence(shards, batch_first=True)))
    total = rows[0].to(wide(tensor.dtype))
    for row in rows[1:]:
        total += row
    parts = yield from received(AllGather((total / membership.world_size).to(tensor.dtype)))
    return parts.flatten()[: tensor.numel()].view_as(tensor)
