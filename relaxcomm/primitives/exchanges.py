"""Exchanges: over what and with whom messages are combined."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from relaxcomm.frozen import frozen
from relaxcomm.messages import DENSE, SUMMABLE, Dense, Message, Sparse
from relaxcomm.operations import AllReduce, Neighbors, Operation, Received
from relaxcomm.protocol import Coding, Compressor, Context, Exchange, Exchanging, Parts, State
from relaxcomm.topology import Topology

Mixing: TypeAlias = Generator[Operation, Received, tuple[Tensor, Tensor | Sparse | None]]


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
                parts: Parts = ((1.0, replace(message, tensor=received)),)
                message = coding.send(parts)
        except StopIteration as stop:
            result: Tensor = stop.value[0]
            return result

    def bytes_sent(self, message_bytes: int, world_size: int, topology: Topology) -> float:
        return 2 * (world_size - 1) / world_size * message_bytes


def mix(cx: Context, graph: Topology, coding: Coding) -> Mixing:
    """Send messages to those that listen; the mixture of all that came, and the own part if asked for."""
    rank, size = cx.membership.rank, cx.membership.world_size
    mine, listeners = graph.weights(size, cx.round)[rank], graph.listeners(rank, size, cx.round)
    try:
        message = next(coding)
        while True:
            packed = message.pack()
            received = yield Neighbors(
                dict.fromkeys(listeners, packed),
                {peer: torch.empty_like(packed) for peer in mine if peer != rank},
            )
            assert not isinstance(received, Tensor)
            others = [(mine[peer], message.unpack(data)) for peer, data in sorted(received.items())]
            message = coding.send([(mine[rank], message), *others])
    except StopIteration as stop:
        result: tuple[Tensor, Tensor | Sparse | None] = stop.value
        return result


@frozen
class gossip(Exchange):
    """Mix with the neighbours in a graph: `x_i <- sum_j W_ij x_j`.

    W has Metropolis-Hastings weights over the edges, or equal ones over a balanced directed graph.
    Where the graph changes, the k-th exchange takes the k-th graph. Each rank sends its message once to
    each neighbour.

    Args:
        topology: the graph; None for the configured one.

    Example:
        >>> gossip()
        gossip()

    Reference: Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", NIPS 2017.
    """

    topology: Topology | None = None

    accepts: ClassVar[frozenset[str]] = frozenset({DENSE})
    same_result: ClassVar[bool] = False
    uses_topology: ClassVar[Literal["complete", "graph", "groups"]] = "graph"

    def own_topology(self) -> Topology | None:
        return self.topology

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        result, _ = yield from mix(
            cx, self.topology or cx.topology, compressor.code(cx, tensor, state, keep_own=False)
        )
        return result

    def bytes_sent(self, message_bytes: int, world_size: int, topology: Topology) -> float:
        graph = self.topology or topology
        steps = graph.period_steps(world_size)
        links = [len(row) - 1 for step in range(steps) for row in graph.weights(world_size, step).values()]
        return sum(links) / steps / world_size * message_bytes
