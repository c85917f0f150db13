"""One rank's part of a model that moves when a quorum has pushed."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from relaxcomm.network.transport import Service
from relaxcomm.primitives.exchanges.parameter_server import ShardPlan, read_header
from relaxcomm.roles import Awaited, Context, Outer
from relaxcomm.roles.exchange import OUTER
from relaxcomm.roles.outer import applied
from relaxcomm.tensors.finiteness import is_finite

_LEAST_SECONDS = 10.0  # that a quorum is waited for
_PATIENCE = 2  # times the longest that a client has taken so far, for a quorum
RESTS = 0  # in the place of a number of samples: a client pushes nothing until all others rest, too


class QuorumShard(Service):
    """One rank's part of the model, and what has been pushed for its next move.

    Args:
        cx: what the outer may know.
        plan: which part, of which clients.
        values: the first values, `[n]`, on the CPU; kept.
        outer: that moves them.
        awaited: how many clients are waited for, and how long others are then.
    """

    def __init__(self, cx: Context, plan: ShardPlan, values: Tensor, outer: Outer, awaited: Awaited) -> None:
        self._cx, self._plan, self._outer = cx, plan, outer
        self._values, self._slots = values, dict(outer.init(plan.kept))
        self._quorum, self._grace_seconds = awaited.workers, awaited.grace_seconds
        self._clients = set(range(plan.world_size))
        self._resting: set[int] = set()
        self._pushed: dict[int, tuple[int, Tensor]] = {}
        self._rounds: dict[int, int] = {}  # of the latest push of each
        self._taken: dict[int, int] = {}
        self._due: float | None = None
        self._begin: float | None = None
        self._answered: dict[int, float] = {}  # when each client was, last
        self._longest = 0.0  # that a client has taken to push, from its last answer or the beginning on
        self._last = 0.0  # when a client has pushed

    def answer(self, client: int, request: Tensor) -> list[tuple[int, Tensor]]:
        samples, round = read_header(request)
        if samples == RESTS:
            self._resting.add(client)
            return [(client, self._plan.reply_of(0, self._values)), *self._answers()]
        delta = self._plan.pushed_in(request)
        if not is_finite(delta):  # of which nothing is kept; its sender learns it from the answer
            return [(client, self._plan.reply_of(0, torch.full_like(self._values, torch.nan)))]
        self._rounds[client] = round + 1
        self._pushed[client] = samples, delta.clone()  # the request is not ours to keep
        self._last = self.now()
        took = self._last - self._answered.get(client, self._began())
        self._longest = max(self._longest, took)
        return self._answers()

    def leave(self, client: int) -> list[tuple[int, Tensor]]:
        self._clients.discard(client)
        self._resting.discard(client)
        return self._answers()

    def due(self) -> float | None:
        self._began()  # it is asked for when serving begins
        if self._due is not None or not self._pushed:
            return self._due
        # Shards see pushes in another order, and so move by other ones: each of those who could make up a
        # quorum here may wait for an answer of another shard, and push nothing until it has come.
        patience = max(_LEAST_SECONDS, _PATIENCE * self._longest)
        return self._last + patience + self._grace_seconds

    def expire(self) -> list[tuple[int, Tensor]]:
        return self._move()

    def _began(self) -> float:
        if self._begin is None:
            self._begin = self.now()
        return self._begin

    def part(self) -> Tensor:
        return self._values

    def taken(self, client: int) -> int:
        return self._taken.get(client, 0)

    def give_up(self) -> None:
        self._pushed.clear()
        self._due = None

    def export(self) -> dict[str, Tensor]:
        assert not self._pushed, "what was pushed is in before a checkpoint"
        slots = {OUTER + name: value.clone() for name, value in self._slots.items()}
        return {"values": self._values.clone(), **slots}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        self._values = saved["values"].clone()
        for name in self._slots:
            self._slots[name] = saved[OUTER + name].clone()

    def _answers(self) -> list[tuple[int, Tensor]]:
        if not self._clients - self._resting:  # whoever comes next is waited for again
            self._resting.clear()
            return []
        coming = self._clients - self._resting - self._pushed.keys()
        if self._pushed and not coming:
            return self._move()
        if len(self._pushed) < self._quorum or self._due is not None:
            return []
        if not self._grace_seconds:
            return self._move()
        self._due = self.now() + self._grace_seconds
        return []

    def _move(self) -> list[tuple[int, Tensor]]:
        """Move the model by what was pushed, and tell those who have."""
        clients = sorted(self._pushed)  # in the order of ranks, not of arrival: the sum is the same each time
        delta = self._mean([self._pushed[client] for client in clients])
        self._values = applied(self._outer, self._cx, self._plan.kept, self._slots, delta, self._values)
        self._taken |= {client: self._rounds[client] for client in clients}
        self._pushed.clear()
        self._due = None
        self._answered.update(dict.fromkeys(clients, self.now()))
        reply = self._plan.reply_of(len(clients), self._values)
        return [(client, reply) for client in clients]

    @staticmethod
    def _mean(pushed: list[tuple[int, Tensor]]) -> Tensor:
        """The mean by samples; of as many each it is the plain one, bit for bit."""
        share = sum(samples for samples, _ in pushed) / len(pushed)
        total = pushed[0][1] * (pushed[0][0] / share)
        for samples, delta in pushed[1:]:
            total.add_(delta, alpha=samples / share)
        return total.div_(len(pushed))
