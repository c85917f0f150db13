"""N ranks as threads of one process, one running at a time, with virtual clocks.

When a rank waits, the one with the smallest virtual clock that can go on does. So a program gives
the same results and the same virtual times each time it runs, and a deadlock is an error that says
who waits for whom.
"""

from __future__ import annotations

import heapq
import math
import threading
from typing import Any

import torch

from relaxcomm.errors import CommunicationError, DeadlockError
from relaxcomm.network.link import SimulatedNetwork
from relaxcomm.network.operation_slots import Slot
from relaxcomm.network.operations import AllGather, Neighbors, Operation
from relaxcomm.network.reductions import Meeting, Objects, signature
from relaxcomm.network.status import AS_MANY_STEPS
from relaxcomm.network.timeline import Timeline
from relaxcomm.network.traffic import messages_of, traffic
from relaxcomm.network.virtual_services import VirtualServices

_NOTHING = torch.empty(0)
_MOST_ALARMS = 10_000  # that ring one after the other, answer nobody, and may still lead to an answer


class World:
    """The scheduler that the ranks of one simulation share."""

    def __init__(self, size: int, network: SimulatedNetwork) -> None:
        self.size, self._network = size, network
        self.clocks = [0.0] * size
        self.stopped: set[int] = set()  # ranks for which nothing takes time now
        self._timeline = Timeline(size)
        self.counts = [0] * size
        self.slots: dict[int, Slot] = {}
        self.waiting: dict[int, tuple[Slot, str]] = {}
        # Those that can go on, but for the one that runs; their clocks stand still meanwhile.
        self._ready_ranks = [(0.0, rank) for rank in range(1, size)]
        self.finished: dict[int, str] = {}
        self.services = VirtualServices(self, network, self._timeline)
        self.transports = [0] * size  # made so far by each rank
        self.gates = [threading.Event() for _ in range(size)]
        self.deadlock: str | None = None

    def post(self, rank: int, operation: Operation | Objects, label: str, rule: str = "") -> Slot:
        """Take note of a rank's next operation, of a rule, and complete what it completes."""
        if self.services:
            self.switch(rank)  # what its services answer before takes its link before
        slot = self.slots.setdefault(self.counts[rank], Slot())
        said = signature(operation, label)
        other, theirs = slot.first = slot.first or (rank, said)
        if theirs != said:
            raise CommunicationError(
                f"ranks are not at the same place: rank {rank} issues {said}, rank {other} issued {theirs}; "
                f"all must call the same in the same order, and {AS_MANY_STEPS}"
            )
        slot.posts[rank] = operation
        slot.arrives_at[rank] = self._arrives(operation, rank, rule)
        self.counts[rank] += 1
        if len(slot.posts) == self.size:
            del self.slots[self.counts[rank] - 1]
        for other, result in slot.complete(rank, self.size):
            self.give(slot, other, result)
        return slot

    def wait(self, rank: int, slot: Slot, label: str) -> Any:
        """Let others run until the rank's result is there."""
        if rank not in slot.results:
            self.waiting[rank] = (slot, label)
            try:
                self.switch(rank)
            finally:
                del self.waiting[rank]
        if rank not in slot.results:
            raise self._stuck(rank, slot, label)
        self.clocks[rank] = self._resumes(rank, slot)
        return slot.results[rank]

    def _resumes(self, rank: int, slot: Slot) -> float:
        """When a rank goes on with its result; services of those that are ahead cannot go back in time."""
        now = self.clocks[rank]
        return now if rank in self.stopped and not self.services else max(now, slot.ready_at[rank])

    def advance(self, rank: int, seconds: float) -> None:
        """Let a rank work for some time."""
        if rank not in self.stopped:
            self.clocks[rank] += seconds

    def has_arrived(self, rank: int, slot: Slot) -> bool:
        """Whether a rank's result is there at this rank's time."""
        self.switch(rank)  # those whose clock is behind may still send what arrives before
        return rank in slot.results and slot.ready_at[rank] <= self.clocks[rank]

    def give(self, slot: Slot, rank: int, result: Any) -> None:
        """A rank has a result, with which it can go on."""
        slot.results[rank] = result
        if rank in self.waiting and self.waiting[rank][0] is slot:
            heapq.heappush(self._ready_ranks, (self._resumes(rank, slot), rank))

    def choose(self) -> int | None:
        """The rank that goes on: the earliest that can, or one that must be told that it never will."""
        ready, vain = self._ready_ranks, 0  # alarms one after the other, where nothing else is to happen
        while vain < _MOST_ALARMS and self.services.events.happen(ready[0][0] if ready else math.inf):
            vain = 0 if ready or self.services.events.arriving else vain + 1
        if ready:
            return heapq.heappop(ready)[1]
        self.services.events.drop_alarms()
        live = [r for r in range(self.size) if r not in self.finished]
        if live and self.deadlock is None:
            waits = "; ".join(f"rank {r} waits at {self.waiting[r][1]}" for r in live)
            gone = "".join(f"; rank {r} {how}" for r, how in self.finished.items())
            rang = f"; {vain} alarms of services rang and answered nobody" if vain == _MOST_ALARMS else ""
            self.deadlock = f"no rank can go on: {waits}{gone}{rang}"
        return min(live, key=lambda r: (self.clocks[r], r), default=None)

    def switch(self, rank: int) -> None:
        """Let others run first whose clock is behind a rank's, and all those that can while it waits."""
        if rank not in self.waiting:
            heapq.heappush(self._ready_ranks, (self.clocks[rank], rank))
        following = self.choose()
        assert following is not None
        if following != rank:
            self.gates[following].set()
            self.gates[rank].wait()
            self.gates[rank].clear()
        self.services.failures.check()

    def _stuck(self, rank: int, slot: Slot, label: str) -> CommunicationError:
        failed = [f"rank {r} {how}" for r, how in self.finished.items() if how.startswith("failed")]
        if failed:
            return CommunicationError(f"rank {rank} at {label}: {'; '.join(failed)}")
        missing = [r for r in range(self.size) if r not in slot.posts]
        return DeadlockError(f"rank {rank} at {label} waits for ranks {missing}; {self.deadlock}")

    def _arrives(self, operation: Operation | Objects, rank: int, rule: str) -> float:
        now = self.clocks[rank]
        is_silent = isinstance(operation, Neighbors) and not operation.sends
        if is_silent or isinstance(operation, Meeting) or rank in self.stopped:
            return now
        carried = AllGather(_NOTHING) if isinstance(operation, Objects) else operation
        link = self._network.link(carried, rank, self.size, rule)
        seconds = traffic(carried, rank, self.size)[0] / link.bytes_per_second
        latency = messages_of(carried, self.size) * link.latency_seconds
        return float(self._timeline.depart(rank, now, seconds, latency, link.burst_seconds))
