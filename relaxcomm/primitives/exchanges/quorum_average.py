"""A server that moves the model by what enough of the workers have pushed, and waits for no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from relaxcomm.errors import TopologyError
from relaxcomm.fields.frozen import Threshold, frozen
from relaxcomm.network.operations import Request
from relaxcomm.primitives.exchanges.parameter_server import ParameterServer, ShardPlan, pushed, read_header
from relaxcomm.primitives.exchanges.quorum_shard import RESTS, QuorumShard
from relaxcomm.roles import Awaited, Compressor, Context, ExchangeFacts, Exchanging, Outer, Served, State
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.topology import Topology

Quorum = Annotated[int, Field(ge=1)] | None
"""How many workers must have reported, 1 or more; None for all."""


@frozen
class quorum_average(ParameterServer):
    """Average what a quorum has pushed, by samples, and move the model: no worker waits for all others.

    Each rank keeps one shard of the model x on its CPU, and takes pushes delta_n as they come. When
    `quorum` workers have pushed it waits for others `grace_seconds` more, moves x by the rule's outer along
    `delta = sum_n s_n delta_n / sum_n s_n`, over those that have pushed, and gives them the new x. The
    weight s_n is the number of samples that worker n has trained on since its last push. A later push is in
    the next move, with its own weight, so none is lost. Nobody waits for workers that have finished: once
    those that are left have all pushed, x is moved, quorum or not. Nor for workers that have not pushed for
    twice the longest time that one has taken so far, and 10 s: they wait for another shard, or have stopped.

    Args:
        quorum: number of workers; more than half of them unless given.
        grace_seconds: how long others are waited for then, 0 or more.

    Raises: TopologyError, when it is attached, for a quorum of more workers than there are.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import deltas, quorum_average, sgd
        >>> rule = Rule(payload=deltas(), exchange=quorum_average(quorum=3), outer=sgd(lr=0.5))
        >>> trajectory(rule, [[1.0, 2.0, 6.0]] * 2)
        tensor([[1.5000, 1.5000, 1.5000],
                [3.0000, 3.0000, 3.0000]])

    Reference: Douillard et al., "Decoupled DiLoCo for Resilient Distributed Pre-training", arXiv 2604.21428.

    Differs from the paper: the weighted mean is of entries, without a radius of its own, and weights are
        samples alone; the grace is constant; shards on the ranks, each with its own quorum, are the
        synchroniser.
    """

    quorum: Quorum = None
    grace_seconds: Threshold = 0.0

    facts: ClassVar[ExchangeFacts] = replace(ParameterServer.facts, applies_outer=True)

    def check_graph(self, topology: Topology, world_size: int) -> None:
        super().check_graph(topology, world_size)
        if self.quorum is not None and self.quorum > world_size:
            raise TopologyError(
                f"{self!r} waits for {self.quorum} workers, and there are {world_size}; use a quorum of at "
                f"most {world_size}, or leave it out for more than half of them"
            )

    def awaited(self, world_size: int) -> Awaited:
        return Awaited(self.quorum or world_size // 2 + 1, grace_seconds=self.grace_seconds)

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        replies = yield from pushed(cx, tensor, compressor, state, (cx.samples, cx.round))
        cx.record("contributors", min(read_header(reply)[0] for reply in replies))
        return tensor

    def meeting(self, cx: Context, bucket: Bucket, compressor: Compressor) -> Request:
        return ShardPlan(cx, bucket, compressor).request_of(RESTS)

    def serve(self, cx: Context, bucket: Bucket, compressor: Compressor, outer: Outer) -> Served:
        plan = ShardPlan(cx, bucket, compressor)
        shard = QuorumShard(cx, plan, plan.first_values(bucket), outer, self.awaited(plan.world_size))
        return Served(shard, plan.request, plan.reply)
