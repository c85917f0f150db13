"""Averaging in pairs, each whenever one of the two has time for it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Index, frozen
from relaxcomm.network.operations import Request
from relaxcomm.network.transport import Service
from relaxcomm.primitives.exchanges.gossip import OverGraph, gossip
from relaxcomm.primitives.exchanges.message_rounds import received
from relaxcomm.primitives.exchanges.parameter_server import Decoder, encode
from relaxcomm.roles import Compressor, Context, ExchangeFacts, Exchanging, Outer, Served, Stage, State
from relaxcomm.roles.stage import Pairs
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.finiteness import is_finite
from relaxcomm.tensors.precision import wide
from relaxcomm.tensors.shards import shard_bucket
from relaxcomm.topology import Topology


@frozen
class pairwise(OverGraph):
    """Average with one neighbour at a time, drawn anew for each exchange: `x_i, x_j <- (x_i + x_j) / 2`.

    The ranks of one side of a bipartite graph are active: each sends its parameters to a neighbour on the
    other side and takes the mean in when it comes. Passive ranks only answer, in a thread and at
    once, from a copy `y_j` of their parameters: `y_j <- y_j + (C(x_i) - y_j) / 2`, and the active rank
    moves by as much the other way, so that the mean of all ranks stays, whatever C leaves out. With
    its own steps a passive rank brings what it has learned to the copy and takes over what others
    brought. As nobody who is asked asks others, nobody can wait for another in a circle.

    Args:
        topology: the graph, undirected and bipartite, which must stay the same; rank 0 is passive. Of
            `complete` only the links between even and odd ranks are used. None for the configured one.
        seed: of the drawing of neighbours.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import pairwise, parameters
        >>> rule = Rule(payload=parameters(), exchange=pairwise(), delay="unbounded")
        >>> trajectory(rule, [[4.0, 0.0, 0.0]] + [[0.0] * 3] * 3)
        tensor([[4., 0., 0.],
                [4., 0., 0.],
                [4., 2., 0.],
                [2., 1., 1.]])

    Reference: Lian et al., "Asynchronous Decentralized Parallel Stochastic Gradient Descent", ICML 2018.

    Differs from the paper: a passive rank's parameters are averaged in a copy, bucket by bucket, and it
        computes on them from its next exchange on.
    """

    topology: Topology | None = None
    seed: Index = 0

    facts: ClassVar[ExchangeFacts] = replace(
        gossip.facts,
        collective=False,
        several_rounds=False,
        needs_fixed_graph=True,
        follows_parameters=True,
        service={"values": "fresh", "taken": "fresh"},
    )

    def check_graph(self, topology: Topology, world_size: int) -> None:
        super().check_graph(topology, world_size)
        topology.sides(world_size)

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        rank, kept = cx.membership.rank, wide(tensor.dtype)
        reply = torch.empty(1, tensor.numel() * kept.itemsize, dtype=torch.uint8)
        peers = _asked_by(rank, self.graph(cx.topology), cx.membership.world_size)
        is_own = rank in peers
        peer = rank if is_own else random.Random(f"{self.seed}/{rank}/{cx.round}").choice(peers)
        sent = tensor.to(kept).view(torch.uint8) if is_own else encode(cx, tensor, compressor, state)
        came = yield from received(Request(sent.unsqueeze(0), reply, (peer,)))
        told = came[0].view(kept).to(tensor.device, non_blocking=True).to(tensor.dtype)
        return told if is_own else tensor - told

    def serve(self, cx: Context, bucket: Bucket, compressor: Compressor, outer: Outer) -> Served:
        start = bucket.gather(bucket.empty()).to("cpu", wide(bucket.dtype))
        request = torch.empty(
            compressor.layout_bytes(bucket.layout, bucket.dtype.itemsize), dtype=torch.uint8
        )
        on_host = shard_bucket(bucket, bucket.layout, device=start.device)
        partner = Partner(cx.membership.rank, start, Decoder(compressor, cx, on_host))
        return Served(partner, request, torch.empty(start.nbytes, dtype=torch.uint8))

    def stages(self, world_size: int, topology: Topology) -> Sequence[Stage]:
        graph = self.graph(topology)
        _, active = graph.sides(world_size)

        def pairs() -> Pairs:
            asked = {rank: _asked_by(rank, graph, world_size) for rank in active}
            return {(rank, peer): 1 / len(peers) for rank, peers in asked.items() for peer in peers}

        return [Stage(Request, share=len(active) / world_size, pairs=pairs)]


def _asked_by(rank: int, graph: Topology, world_size: int) -> list[int]:
    """Whom a rank may ask: itself if it is passive."""
    passive, active = graph.sides(world_size)
    if rank not in active:
        return [rank]
    return [peer for peer in sorted(graph.weights(world_size)[rank]) if peer in passive]


class Partner(Service):
    """A passive rank's parameters, as those who ask for it meet them.

    Of a message that is not finite nothing is kept; its answer, which is not finite either, tells the sender.

    Args:
        rank: whose they are.
        values: the first values, `[n]`, on the CPU; kept.
        decoder: of what active ranks send.
    """

    def __init__(self, rank: int, values: Tensor, decoder: Decoder) -> None:
        self._rank, self._values, self._decoder = rank, values, decoder
        self._taken = values.clone()  # what the rank itself was last told
        self._was_met = False  # since then
        self._has_met = False  # before it

    def answer(self, client: int, request: Tensor) -> list[tuple[int, Tensor]]:
        if client == self._rank:
            learned = request.clone().view(self._values.dtype) - self._taken
            reply = self._values + learned
            if is_finite(learned):
                self._values = self._taken = reply
                self._has_met, self._was_met = self._was_met, False
        else:
            reply = (self._decoder(request) - self._values) / 2
            if is_finite(reply):
                self._values = self._values + reply
                self._was_met = True
        return [(client, reply.view(torch.uint8))]

    def leave(self, client: int) -> list[tuple[int, Tensor]]:
        return []

    def has_met(self) -> bool:
        return self._has_met

    def rest(self) -> Tensor:
        return self._values - self._taken

    def export(self) -> dict[str, Tensor]:
        return {"values": self._values.clone(), "taken": self._taken.clone()}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self._values, self._taken = saved["values"].clone(), saved["taken"].clone()
        self._was_met = not torch.equal(self._values, self._taken)
