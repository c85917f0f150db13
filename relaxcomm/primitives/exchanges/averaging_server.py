"""A server that averages what the workers push, round by round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.network.transport import Service
from relaxcomm.primitives.exchanges.parameter_server import ParameterServer, ShardPlan, pushed, read_header
from relaxcomm.roles import Compressor, Context, ExchangeFacts, Exchanging, Outer, Served, State
from relaxcomm.tensors.buckets import Bucket


@frozen
class averaging_server(ParameterServer):
    """Give every worker the mean of what all have pushed in the same round, `(1/N) sum_n x_n`.

    Each rank serves one shard on its CPU. A worker's k-th push is averaged with the k-th of each other
    worker, whenever they come, so this is an all-reduce in which no worker has to stand still: with
    the delay "unbounded" each applies the mean when it arrives. A worker that has finished is counted
    no longer.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import averaging_server, parameters
        >>> rule = Rule(payload=parameters(), exchange=averaging_server())
        >>> trajectory(rule, [[1.0, 2.0, 6.0]])
        tensor([[3., 3., 3.]])

    Reference: Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations", VLDB 2022
        (asynchronous model average).

    Differs from the paper: shards served by the ranks in the place of an all-reduce in a second
        thread, so that workers need not agree on when to end.
    """

    facts: ClassVar[ExchangeFacts] = replace(
        ParameterServer.facts, same_result=True, returns="mean", service={"round": "equal"}
    )

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        yield from pushed(cx, tensor, compressor, state, (cx.round, 0))
        return tensor

    def serve(self, cx: Context, bucket: Bucket, compressor: Compressor, outer: Outer) -> Served:
        plan = ShardPlan(cx, bucket, compressor)
        return Served(AveragingShard(plan), plan.request, plan.reply)


class AveragingShard(Service):
    """One rank's part of a round: what has been pushed, until all have."""

    def __init__(self, plan: ShardPlan) -> None:
        self._plan = plan
        self._clients = set(range(plan.world_size))
        self._round = 0
        self._pushed: dict[int, Tensor] = {}

    def answer(self, client: int, request: Tensor) -> list[tuple[int, Tensor]]:
        round, _ = read_header(request)
        if round != self._round or client in self._pushed:
            raise ValueError(f"rank {client} pushed round {round}, but this shard is at round {self._round}")
        self._pushed[client] = self._plan.pushed_in(request).clone()  # the request is not ours to keep
        return self._answers()

    def leave(self, client: int) -> list[tuple[int, Tensor]]:
        self._clients.discard(client)
        return self._answers()

    def give_up(self) -> None:
        self._pushed.clear()

    def export(self) -> dict[str, Tensor]:
        assert not self._pushed, "all rounds are complete before a checkpoint"
        return {"round": torch.tensor(self._round)}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self._round = int(saved["round"])

    def _answers(self) -> list[tuple[int, Tensor]]:
        if not self._pushed or not self._clients <= self._pushed.keys():
            return []
        # In the order of ranks, not of arrival: the sum is the same each time.
        mean = torch.stack([self._pushed[client] for client in sorted(self._pushed)]).mean(0)
        reply = self._plan.reply_of(self._round, mean)
        answered = list(self._pushed)
        self._pushed.clear()
        self._round += 1
        return [(client, reply) for client in answered]
