"""Gossip over directed graphs, in which nobody needs to hear from those that it sends to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.network.transport import Membership
from relaxcomm.primitives.compressors.decode import finish
from relaxcomm.primitives.compressors.memory import inner_slots, inner_state
from relaxcomm.primitives.exchanges.gossip import OverGraph, gossip, swap
from relaxcomm.roles import Compressor, Context, ExchangeFacts, Exchanging, State
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.layout import Layout
from relaxcomm.topology import Topology

_SUM, _WEIGHT = "sum", "weight"
_WEIGHT_BYTES = 8


@frozen
class push_sum(OverGraph):
    """Each rank hands out parts of a sum and of a weight; the parameters are their quotient.

    With P_ij what rank j gives to rank i, `sum_i P_ij = 1`, and u_i what the optimizer has added to z_i:
    `x_i <- sum_j P_ij (x_j + u_j)`, `w_i <- sum_j P_ij w_j`, `z_i = x_i / w_i`. The total of all x only moves
    by the updates, so z comes to the mean of the ranks over any graph in which each rank is heard by all
    in the end, balanced or not. Parts are equal over a directed graph, and `gossip`'s weights over one whose
    links go both ways. The weight, 1 at first, travels in float64 behind the message.

    Args:
        topology: the graph, directed or not; where it changes, the k-th exchange takes the k-th. None for
            the configured one.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import one_peer_exponential, parameters, push_sum
        >>> rule = Rule(payload=parameters(), exchange=push_sum(topology=one_peer_exponential()))
        >>> trajectory(rule, [[12.0, 0.0, 0.0, 0.0]] + [[0.0] * 4] * 2)
        tensor([[6., 6., 0., 0.],
                [3., 3., 3., 3.],
                [3., 3., 3., 3.]])

    Reference: Assran et al., "Stochastic Gradient Push for Distributed Deep Learning", ICML 2019.
    """

    topology: Topology | None = None

    facts: ClassVar[ExchangeFacts] = replace(
        gossip.facts,
        several_rounds=False,
        follows_parameters=True,
        slots={_SUM: "fresh", _WEIGHT: "fresh"},
        coding="inner",
    )

    def check_graph(self, topology: Topology, world_size: int) -> None:
        topology.check(world_size, balanced=False)

    def coding_slots(
        self, bucket: Bucket, compressor: Compressor, membership: Membership
    ) -> Mapping[str, Tensor]:
        weight = torch.ones(1, dtype=torch.float64, device=bucket.device)
        return {_SUM: bucket.copy(), _WEIGHT: weight, **inner_slots(compressor, bucket)}

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        tensor.sub_(_quotient(state).to(tensor.dtype))  # what the optimizer has added
        # What a shorter type cannot hold is not handed out.
        held = torch.add(tensor, state[_SUM], out=tensor if tensor.dtype == state[_SUM].dtype else None)
        sendable = held.to(tensor.dtype)
        rest = None if held is tensor else held - sendable
        coding = compressor.encode_decode(cx, sendable, inner_state(state, sendable), keep_sent=False)
        message = next(coding)
        packed = torch.cat([message.pack(), state[_WEIGHT].view(torch.uint8)])
        came = yield from swap(cx, self.graph(cx.topology), packed)
        total, _ = finish(coding, [(share, message.unpack(data)) for share, data in came])
        weights = [data[-_WEIGHT_BYTES:].clone().view(torch.float64) * share for share, data in came]
        total = total.to(state[_SUM].dtype)
        state[_SUM], state[_WEIGHT] = total if rest is None else total + rest, torch.stack(weights).sum(0)
        return _quotient(state).to(tensor.dtype)

    def rest(self, state: State) -> Tensor:
        return state[_SUM] - _quotient(state)

    def coded_bytes(self, compressor: Compressor, layout: Layout, element_bytes: int, world_size: int) -> int:
        return super().coded_bytes(compressor, layout, element_bytes, world_size) + _WEIGHT_BYTES


def _quotient(state: State) -> Tensor:
    return state[_SUM] / state[_WEIGHT].to(state[_SUM].dtype)
