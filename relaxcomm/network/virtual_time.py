"""N ranks as threads of one process, one running at a time, with virtual clocks.

When a rank waits, the one with the smallest virtual clock that can go on does. So a program gives
the same results and the same virtual times each time it runs, and a deadlock is an error that says
who waits for whom.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from relaxcomm.errors import CommunicationError, DeadlockError
from relaxcomm.network.byte_counters import ByteCounters
from relaxcomm.network.desks import Desk, Failures
from relaxcomm.network.link import Link
from relaxcomm.network.operation_slots import Slot
from relaxcomm.network.operations import AllGather, Operation, Request
from relaxcomm.network.reductions import Meeting, Objects, signature
from relaxcomm.network.simulated_network import SimulatedNetwork
from relaxcomm.network.timeline import Timeline
from relaxcomm.network.traffic import messages_of, size_bytes, traffic
from relaxcomm.network.transport import Service

_NOTHING, _AT_ONCE = torch.empty(0), Link()


@dataclass
class Answers:
    """The answers to one request so far."""

    slot: Slot
    request: Request
    rows: Mapping[int, Tensor]  # of its `reply`, by the rank that is to fill it
    at_once: bool  # for a rank whose clock is stopped


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
        self.services: dict[tuple[int, Desk], Service] = {}
        self._failures = Failures()
        self.counters: dict[tuple[int, Desk], ByteCounters] = {}
        # By server, who asked and desk, in turn: a rank may ask again before it is answered.
        self._asked: defaultdict[tuple[int, int, Desk], deque[Answers]] = defaultdict(deque)
        self._downlinks = Timeline(size)  # of answers: what all send to all arrives as fast as it leaves
        # What happens at services: requests arrive (those before alarms of the same time), alarms are due.
        self._events: list[tuple[float, bool, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.now = 0.0  # where the service that is called stands
        self.transports = [0] * size  # made so far by each rank
        self.gates = [threading.Event() for _ in range(size)]
        self.deadlock: str | None = None

    def post(self, rank: int, operation: Operation | Objects, label: str, rule: str = "") -> Slot:
        """Take note of a rank's next operation, of a rule, and complete what it completes."""
        slot = self.slots.setdefault(self.counts[rank], Slot())
        said = signature(operation, label)
        other, theirs = slot.first = slot.first or (rank, said)
        if theirs != said:
            raise CommunicationError(
                f"ranks are not at the same place: rank {rank} issues {said}, rank {other} issued {theirs}"
            )
        slot.posts[rank] = operation
        slot.arrives_at[rank] = self._arrives(operation, rank, rule)
        self.counts[rank] += 1
        if len(slot.posts) == self.size:
            del self.slots[self.counts[rank] - 1]
        for other, result in slot.complete(rank, self.size):
            self._give(slot, other, result)
        return slot

    def wait(self, rank: int, slot: Slot, label: str) -> Any:
        """Let others run until the rank's result is there."""
        if rank not in slot.results:
            self.waiting[rank] = (slot, label)
            try:
                self._switch(rank)
            finally:
                del self.waiting[rank]
        if rank not in slot.results:
            raise self._stuck(rank, slot, label)
        if rank not in self.stopped:
            self.clocks[rank] = max(self.clocks[rank], slot.ready_at[rank])
        return slot.results[rank]

    def advance(self, rank: int, seconds: float) -> None:
        """Let a rank work for some time."""
        if rank not in self.stopped:
            self.clocks[rank] += seconds

    def has_arrived(self, rank: int, slot: Slot) -> bool:
        """Whether a rank's result is there at this rank's time."""
        self._switch(rank)  # those whose clock is behind may still send what arrives before
        return rank in slot.results and slot.ready_at[rank] <= self.clocks[rank]

    def ask(self, rank: int, desk: Desk, request: Request) -> Slot:
        """Hand a request to the services of those that are asked, in the order of virtual time."""
        self._switch(rank)  # those whose clock is behind ask first
        slot = Slot()
        begin, at_once = self.clocks[rank], rank in self.stopped
        rows = dict(zip(request.asked, request.reply, strict=True))
        asked = Answers(slot, request, rows, at_once)
        link = self._link(request, rank, desk, at_once)
        there = traffic(request, rank, self.size)[0] / link.bytes_per_second
        arrived = self._timeline.depart(rank, begin, there, link.latency_seconds, link.burst_seconds)
        for server, sent in zip(request.asked, request.tensor, strict=True):
            row = sent.to("cpu", copy=True)  # services know no other device
            self._asked[server, rank, desk].append(asked)
            if server != rank:
                self.counters[server, desk].add(desk[1], received=size_bytes(row))
            arrives = begin if server == rank else float(arrived)
            self._at(arrives, partial(self._take_in, server, rank, desk, row))
        while self._happens(begin):  # what takes no time needs no switch to another rank
            pass
        return slot

    def _take_in(self, server: int, client: int, desk: Desk, row: Tensor) -> None:
        with self._failures.noted(server, desk):
            self._deliver(server, desk, self.services[server, desk].answer(client, row), self.now)

    def _link(self, request: Request, rank: int, desk: Desk, at_once: bool) -> Link:
        return _AT_ONCE if at_once else self._network.link(request, rank, self.size, desk[1])

    def _at(self, when: float, happens: Callable[[], None], *, is_alarm: bool = False) -> None:
        heapq.heappush(self._events, (when, is_alarm, next(self._numbers), happens))

    def serve(self, rank: int, desk: Desk, service: Service) -> None:
        """Have a rank's service answer at a desk, on its own clock."""
        self.services[rank, desk] = service
        self.now = self.clocks[rank]
        service.now = lambda: self.now
        self._watch(rank, desk)

    def leave(self, rank: int, desk: Desk) -> None:
        """A rank asks nothing more at a desk."""
        self.now = self.clocks[rank]
        for server in range(self.size):
            with self._failures.noted(server, desk):
                self._deliver(server, desk, self.services[server, desk].leave(rank), self.now)
        self._failures.check()

    def _deliver(self, server: int, desk: Desk, answers: Sequence[tuple[int, Tensor]], now: float) -> None:
        for client, reply in answers:
            asked = self._asked[server, client, desk].popleft()
            if server != client:
                self.counters[server, desk].add(desk[1], sent=size_bytes(reply))
            asked.rows[server].copy_(reply)
            asked.slot.posts[server] = Request(reply, reply)
            ready = now if server == client else self._carried(asked, server, client, desk, now)
            asked.slot.ready_at[client] = max(asked.slot.ready_at.get(client, 0.0), ready)
            if len(asked.slot.posts) == len(asked.rows):
                self._give(asked.slot, client, asked.request.reply)
        self._watch(server, desk)

    def _carried(self, asked: Answers, server: int, client: int, desk: Desk, now: float) -> float:
        """When an answer has passed the link of who gives it, and then that of who asked."""
        link = self._link(asked.request, server, desk, asked.at_once)
        seconds = size_bytes(asked.rows[server]) / link.bytes_per_second
        left = float(self._timeline.depart(server, now, seconds, 0.0, link.burst_seconds))
        begin = max(now, left - seconds)
        return float(self._downlinks.depart(client, begin, seconds, link.latency_seconds, link.burst_seconds))

    def _watch(self, server: int, desk: Desk) -> None:
        due = self.services[server, desk].due()
        if due is not None:
            self._at(due, partial(self._expire, server, desk, due), is_alarm=True)

    def _expire(self, server: int, desk: Desk, due: float) -> None:
        service = self.services[server, desk]
        with self._failures.noted(server, desk):
            if service.due() == due:
                self._deliver(server, desk, service.expire(), due)

    def _give(self, slot: Slot, rank: int, result: Any) -> None:
        slot.results[rank] = result
        if rank in self.waiting and self.waiting[rank][0] is slot:
            now = self.clocks[rank]
            resumes = now if rank in self.stopped else max(now, slot.ready_at[rank])
            heapq.heappush(self._ready_ranks, (resumes, rank))

    def choose(self) -> int | None:
        """The rank that goes on: the earliest that can, or one that must be told that it never will."""
        while self._happens(self._ready_ranks[0][0] if self._ready_ranks else math.inf):
            pass
        if self._ready_ranks:
            return heapq.heappop(self._ready_ranks)[1]
        live = [r for r in range(self.size) if r not in self.finished]
        if live and self.deadlock is None:
            waits = "; ".join(f"rank {r} waits at {self.waiting[r][1]}" for r in live)
            gone = "".join(f"; rank {r} {how}" for r, how in self.finished.items())
            self.deadlock = f"no rank can go on: {waits}{gone}"
        return min(live, key=lambda r: (self.clocks[r], r), default=None)

    def _happens(self, until: float) -> bool:
        """Let the first thing happen at a service: a request that arrives by `until`, an alarm before."""
        if not self._events or self._events[0][:2] >= (until, True):
            return False
        self.now, *_, happens = heapq.heappop(self._events)
        happens()
        return True

    def _switch(self, rank: int) -> None:
        if rank not in self.waiting:
            heapq.heappush(self._ready_ranks, (self.clocks[rank], rank))
        following = self.choose()
        assert following is not None
        if following != rank:
            self.gates[following].set()
            self.gates[rank].wait()
            self.gates[rank].clear()
        self._failures.check()

    def _stuck(self, rank: int, slot: Slot, label: str) -> CommunicationError:
        failed = [f"rank {r} {how}" for r, how in self.finished.items() if how.startswith("failed")]
        if failed:
            return CommunicationError(f"rank {rank} at {label}: {'; '.join(failed)}")
        missing = [r for r in range(self.size) if r not in slot.posts]
        return DeadlockError(f"rank {rank} at {label} waits for ranks {missing}; {self.deadlock}")

    def _arrives(self, operation: Operation | Objects, rank: int, rule: str) -> float:
        now = self.clocks[rank]
        if isinstance(operation, Meeting) or rank in self.stopped:
            return now
        carried = AllGather(_NOTHING) if isinstance(operation, Objects) else operation
        link = self._network.link(carried, rank, self.size, rule)
        seconds = traffic(carried, rank, self.size)[0] / link.bytes_per_second
        latency = messages_of(carried, self.size) * link.latency_seconds
        return float(self._timeline.depart(rank, now, seconds, latency, link.burst_seconds))
