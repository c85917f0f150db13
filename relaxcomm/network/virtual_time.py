"""N ranks as threads of one process, one running at a time, with virtual clocks.

When a rank waits, the one with the smallest virtual clock that can go on does. So a program gives
the same results and the same virtual times each time it runs, and a deadlock is an error that says
who waits for whom.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from relaxcomm.errors import CommunicationError, DeadlockError
from relaxcomm.network.byte_counters import ByteCounters
from relaxcomm.network.desks import Answers, Desk, Events, Failures, turn
from relaxcomm.network.link import Link
from relaxcomm.network.operation_slots import Slot
from relaxcomm.network.operations import AllGather, Neighbors, Operation, Request
from relaxcomm.network.reductions import Meeting, Objects, signature
from relaxcomm.network.simulated_network import SimulatedNetwork
from relaxcomm.network.timeline import Timeline
from relaxcomm.network.traffic import messages_of, size_bytes, traffic
from relaxcomm.network.transport import Service

_NOTHING, _AT_ONCE = torch.empty(0), Link()
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
        self.services: dict[tuple[int, Desk], Service] = {}
        self.counters: dict[tuple[int, Desk], ByteCounters] = {}
        # By server, who asked and desk, in turn: a rank may ask again before it is answered.
        self._asked: defaultdict[tuple[int, int, Desk], deque[Answers]] = defaultdict(deque)
        self._downlinks = Timeline(size)  # of answers: what all send to all arrives as fast as it leaves
        self._goodbyes: defaultdict[tuple[int, Desk], Slot] = defaultdict(Slot)  # that a server has heard
        self._events, self._failures = Events(self._expire), Failures()
        self.transports = [0] * size  # made so far by each rank
        self.gates = [threading.Event() for _ in range(size)]
        self.deadlock: str | None = None

    def post(self, rank: int, operation: Operation | Objects, label: str, rule: str = "") -> Slot:
        """Take note of a rank's next operation, of a rule, and complete what it completes."""
        if self.services:
            self._switch(rank)  # what its services answer before takes its link before
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
        self._switch(rank)  # those whose clock is behind may still send what arrives before
        return rank in slot.results and slot.ready_at[rank] <= self.clocks[rank]

    def ask(self, rank: int, desk: Desk, request: Request) -> Slot:
        """Hand a request to the services of those that are asked, in the order of virtual time."""
        self._switch(rank)  # those whose clock is behind ask first
        slot = Slot()
        begin, at_once = self.clocks[rank], rank in self.stopped
        asked = Answers(slot, request, dict(zip(request.asked, request.reply, strict=True)), at_once)
        link = _AT_ONCE if at_once else self._network.link(request, rank, self.size, desk[1])
        there = traffic(request, rank, self.size)[0] / link.bytes_per_second
        arrived = self._timeline.depart(rank, begin, there, link.latency_seconds, link.burst_seconds)
        for server, sent in zip(request.asked, request.tensor, strict=True):
            row = sent.to("cpu", copy=True)  # services know no other device
            self._asked[server, rank, desk].append(asked)
            if server != rank:
                self.counters[server, desk].add(desk[1], received=size_bytes(row))
            arrives = begin if server == rank else float(arrived)
            happens = partial(self._take_in, server, rank, desk, row)
            self._events.at(arrives, happens, turn(server, rank, self.size))
        while self._events.happen(begin):  # what takes no time needs no switch to another rank
            pass
        return slot

    def _take_in(self, server: int, client: int, desk: Desk, row: Tensor) -> None:
        with self._failures.noted(server, desk):
            self._deliver(server, desk, self.services[server, desk].answer(client, row))

    def serve(self, rank: int, desk: Desk, service: Service) -> None:
        """Have a rank's service answer at a desk, on its own clock."""
        self.services[rank, desk] = service
        self._events.now = self.clocks[rank]
        service.now = lambda: self._events.now
        self._events.set_alarm(rank, desk, service.due())

    def leave(self, rank: int, desk: Desk) -> Slot:
        """A rank asks nothing more at a desk; what it then waits for: that nobody does."""
        self._switch(rank)
        begin, goodbye = self.clocks[rank], Request(_NOTHING, _NOTHING)
        link = self._network.link(goodbye, rank, self.size, desk[1])
        # Behind what the rank has asked and is still on its way.
        arrived = self._timeline.depart(rank, begin, 0.0, link.latency_seconds, link.burst_seconds)
        for server in range(self.size):
            arrives = begin if server == rank else float(arrived)
            happens = partial(self._take_leave, server, rank, desk)
            self._events.at(arrives, happens, turn(server, rank, self.size))
        return self._goodbyes[rank, desk]

    def _take_leave(self, server: int, client: int, desk: Desk) -> None:
        with self._failures.noted(server, desk):
            self._deliver(server, desk, self.services[server, desk].leave(client))
        heard = self._goodbyes[server, desk]
        heard.posts[client] = Meeting()
        if len(heard.posts) == self.size:
            heard.ready_at[server] = self._events.now
            self._events.set_alarm(server, desk, None)
            self._give(self._goodbyes.pop((server, desk)), server, None)

    def _deliver(self, server: int, desk: Desk, answers: Sequence[tuple[int, Tensor]]) -> None:
        for client, reply in sorted(answers, key=lambda answer: turn(server, answer[0], self.size)):
            asked = self._asked[server, client, desk].popleft()
            asked.rows[server].copy_(reply)
            if server != client:
                self.counters[server, desk].add(desk[1], sent=size_bytes(reply))
            if server == client or asked.at_once:
                self._take_answer(asked, server, client, self._events.now)
            else:
                self._send_answer(asked, server, client, desk)
        self._events.set_alarm(server, desk, self.services[server, desk].due())

    def _send_answer(self, asked: Answers, server: int, client: int, desk: Desk) -> None:
        """It passes the link of who gives it, and then that of who asked, behind earlier ones."""
        now, link = self._events.now, self._network.link(asked.request, server, self.size, desk[1])
        seconds, burst = size_bytes(asked.rows[server]) / link.bytes_per_second, link.burst_seconds
        left = float(self._timeline.depart(server, now, seconds, 0.0, burst))

        def pass_downlink() -> None:
            begin, latency = self._events.now, link.latency_seconds
            ready = float(self._downlinks.depart(client, begin, seconds, latency, burst))
            self._take_answer(asked, server, client, ready)

        self._events.at(max(now, left - seconds), pass_downlink)

    def _take_answer(self, asked: Answers, server: int, client: int, ready: float) -> None:
        slot, reply = asked.slot, asked.request.reply
        slot.posts[server] = asked.request
        slot.ready_at[client] = max(slot.ready_at.get(client, 0.0), ready)
        if len(slot.posts) == len(asked.rows):
            self._give(slot, client, reply)

    def _expire(self, server: int, desk: Desk) -> None:
        with self._failures.noted(server, desk):
            self._deliver(server, desk, self.services[server, desk].expire())

    def _give(self, slot: Slot, rank: int, result: Any) -> None:
        slot.results[rank] = result
        if rank in self.waiting and self.waiting[rank][0] is slot:
            heapq.heappush(self._ready_ranks, (self._resumes(rank, slot), rank))

    def choose(self) -> int | None:
        """The rank that goes on: the earliest that can, or one that must be told that it never will."""
        ready, vain = self._ready_ranks, 0  # alarms one after the other, where nothing else is to happen
        while vain < _MOST_ALARMS and self._events.happen(ready[0][0] if ready else math.inf):
            vain = 0 if ready or self._events.arriving else vain + 1
        if ready:
            return heapq.heappop(ready)[1]
        self._events.drop_alarms()
        live = [r for r in range(self.size) if r not in self.finished]
        if live and self.deadlock is None:
            waits = "; ".join(f"rank {r} waits at {self.waiting[r][1]}" for r in live)
            gone = "".join(f"; rank {r} {how}" for r, how in self.finished.items())
            rang = f"; {vain} alarms of services rang and answered nobody" if vain == _MOST_ALARMS else ""
            self.deadlock = f"no rank can go on: {waits}{gone}{rang}"
        return min(live, key=lambda r: (self.clocks[r], r), default=None)

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
        is_silent = isinstance(operation, Neighbors) and not operation.sends
        if is_silent or isinstance(operation, Meeting) or rank in self.stopped:
            return now
        carried = AllGather(_NOTHING) if isinstance(operation, Objects) else operation
        link = self._network.link(carried, rank, self.size, rule)
        seconds = traffic(carried, rank, self.size)[0] / link.bytes_per_second
        latency = messages_of(carried, self.size) * link.latency_seconds
        return float(self._timeline.depart(rank, now, seconds, latency, link.burst_seconds))
