"""A parameter server that is sharded over the workers themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.network.operations import Request
from relaxcomm.network.transport import Service
from relaxcomm.primitives.exchanges.parameter_server import ParameterServer, ShardPlan, pushed, read_header
from relaxcomm.roles import Awaited, Compressor, Context, ExchangeFacts, Exchanging, Outer, Served, State
from relaxcomm.tensors.buckets import Bucket

Staleness = Annotated[float, Field(ge=0)]
"""How many clocks a worker may be ahead of the slowest, 0 or more, or infinity."""

_MEETS = -1  # in the place of a clock: a client waits until all others are here, and pushes nothing


@frozen
class server(ParameterServer):
    """Push what this worker has moved, read parameters that miss at most `staleness` of the others' clocks.

    Each rank keeps one shard of the parameters `x` on its CPU and adds up what workers push, `x <- x -
    delta_n / N`. A worker at clock c (its number of pushes) gets an answer once every push stamped at
    most `c - staleness - 1` is in it; its own are always in it, and newer ones as they come. Staleness
    0 is bulk-synchronous, infinity never waits. A worker that has finished goes on serving until all
    have. The model of `averaged()` and `close()` is the server's, with all that any worker has pushed.

    Args:
        staleness: in clocks, 0 or more, or infinity.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import deltas, server
        >>> rule = Rule(payload=deltas(), exchange=server(staleness=3))
        >>> trajectory(rule, [[1.0, 2.0, 6.0]] * 3)
        tensor([[0.3333, 1.0000, 3.0000],
                [3.3333, 4.0000, 6.0000],
                [6.3333, 7.0000, 9.0000]])

    Reference: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
        Server", NIPS 2013.

    Differs from the paper: a worker reads once a clock, after its push; pushes are averaged.
    """

    staleness: Staleness

    facts: ClassVar[ExchangeFacts] = replace(
        ParameterServer.facts, service={"values": "part", "clocks": "fresh"}
    )

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        need = 0 if math.isinf(self.staleness) else max(0, cx.round + 1 - int(self.staleness))
        replies = yield from pushed(cx, tensor, compressor, state, (cx.round, need))
        least = min(read_header(reply)[0] for reply in replies)
        cx.record("staleness_steps", max(0, cx.round + 1 - least))
        return tensor

    def awaited(self, world_size: int) -> Awaited:
        return Awaited(1) if math.isinf(self.staleness) else Awaited(world_size, int(self.staleness))

    def meeting(self, cx: Context, bucket: Bucket, compressor: Compressor) -> Request:
        return ShardPlan(cx, bucket, compressor).request_of(_MEETS)

    def serve(self, cx: Context, bucket: Bucket, compressor: Compressor, outer: Outer) -> Served:
        plan = ShardPlan(cx, bucket, compressor)
        return Served(Shard(plan, plan.first_values(bucket)), plan.request, plan.reply)


class Shard(Service):
    """One rank's part of the parameters, and who waits for what.

    Args:
        plan: which part, of which clients.
        values: the first values, `[n]`, on the CPU; kept.
    """

    def __init__(self, plan: ShardPlan, values: Tensor) -> None:
        self._plan, self._values = plan, values
        self._clocks = [0.0] * plan.world_size  # number of pushes of each client; infinity once it has left
        self._needs: dict[int, int] = {}
        self._met: set[int] = set()

    def answer(self, client: int, request: Tensor) -> list[tuple[int, Tensor]]:
        clock, need = read_header(request)
        if clock == _MEETS:
            self._met.add(client)
            return self._answers()
        self._values.sub_(self._plan.pushed_in(request), alpha=1 / len(self._clocks))
        self._clocks[client] = clock + 1
        self._needs[client] = need
        return self._answers()

    def leave(self, client: int) -> list[tuple[int, Tensor]]:
        self._clocks[client] = math.inf
        return self._answers()

    def part(self) -> Tensor:
        return self._values

    def taken(self, client: int) -> int:
        return 0 if math.isinf(self._clocks[client]) else int(self._clocks[client])

    def export(self) -> dict[str, Tensor]:
        return {"values": self._values.clone(), "clocks": torch.tensor(self._clocks, dtype=torch.float64)}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self._values.copy_(saved["values"])
        self._clocks = saved["clocks"].tolist()

    def _answers(self) -> list[tuple[int, Tensor]]:
        pushing = [clock for client, clock in enumerate(self._clocks) if client not in self._met]
        least = min(pushing, default=math.inf)
        ready = [client for client, need in self._needs.items() if need <= least]
        for client in ready:
            del self._needs[client]
        if math.isinf(least):  # nobody is left who pushes
            ready += sorted(self._met)
            self._met.clear()
        if not ready:
            return []
        reached = 0 if math.isinf(least) else int(least)
        reply = self._plan.reply_of(reached, self._values)
        return [(client, reply) for client in ready]
