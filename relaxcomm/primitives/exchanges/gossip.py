"""Mixing with the neighbours in a graph."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.network.operations import Neighbors, Operation, Received
from relaxcomm.primitives.exchanges.all_reduce import all_reduce
from relaxcomm.primitives.exchanges.message_rounds import Combining, coded
from relaxcomm.roles import Compressor, Context, Exchange, ExchangeFacts, Exchanging, Stage, State
from relaxcomm.tensors.messages import DENSE, Message
from relaxcomm.topology import Topology

Shares: TypeAlias = list[tuple[float, Tensor]]


def mixed(cx: Context, graph: Topology, message: Message) -> Combining:
    """Send a message to those that listen; the own one and what came, each with its share in the mixture."""
    came = yield from swap(cx, graph, message.pack())
    return [(share, message.unpack(data)) for share, data in came]


def swap(cx: Context, graph: Topology, packed: Tensor) -> Generator[Operation, Received, Shares]:
    """The same of bytes."""
    rank, size = cx.membership.rank, cx.membership.world_size
    mine, listeners = graph.weights(size, cx.round)[rank], graph.listeners(rank, size, cx.round)
    received = yield Neighbors(
        dict.fromkeys(listeners, packed),
        {peer: torch.empty_like(packed) for peer in mine if peer != rank},
    )
    assert not isinstance(received, Tensor)
    # Shares may be fractions, by which no tensor can be multiplied.
    heard = ((float(mine[peer]), data) for peer, data in sorted(received.items()))
    return [(float(mine[rank]), packed), *heard]


class OverGraph(Exchange):
    """An exchange with the neighbours in a graph: one of its own, or the configured one.

    Frozen classes repeat the field, in the place that it has among theirs.
    """

    topology: Topology | None = None

    def topology_override(self) -> Topology | None:
        return self.topology

    def graph(self, configured: Topology) -> Topology:
        """Over which it exchanges."""
        return self.topology or configured

    def stages(self, world_size: int, topology: Topology) -> Sequence[Stage]:
        return [Stage(Neighbors)]


@frozen
class gossip(OverGraph):
    """Mix with the neighbours in a graph: `x_i <- sum_j W_ij x_j`.

    W has Metropolis-Hastings weights over the edges, or equal ones over a balanced directed graph.
    Where the graph changes, the k-th exchange takes the k-th graph. Each rank sends its message once to
    each neighbour.

    Args:
        topology: the graph; None for the configured one.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import gossip, parameters
        >>> rule = Rule(payload=parameters(), exchange=gossip())
        >>> trajectory(rule, [[12.0, 0.0, 0.0, 0.0]] + [[0.0] * 4] * 2, topology="ring")
        tensor([[4.0000, 4.0000, 0.0000, 4.0000],
                [4.0000, 2.6667, 2.6667, 2.6667],
                [3.1111, 3.1111, 2.6667, 3.1111]])

    Reference: Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", NIPS 2017.
    """

    topology: Topology | None = None

    facts: ClassVar[ExchangeFacts] = replace(
        all_reduce.facts,
        accepts=frozenset({DENSE}),
        same_result=False,
        topology="graph",
        takes_divided=False,
    )

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        graph = self.graph(cx.topology)
        result, _ = yield from coded(cx.at(out=tensor), tensor, compressor, state, partial(mixed, cx, graph))
        return result
