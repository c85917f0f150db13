"""What services of simulated ranks answer, in virtual time, and when it has passed the links."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from relaxcomm.network.byte_counters import ByteCounters
from relaxcomm.network.desks import Answers, Desk, Events, Failures, turn
from relaxcomm.network.link import Link, SimulatedNetwork
from relaxcomm.network.operation_slots import Slot
from relaxcomm.network.operations import Request
from relaxcomm.network.reductions import Meeting
from relaxcomm.network.timeline import Timeline
from relaxcomm.network.traffic import traffic
from relaxcomm.network.transport import Service

_NOTHING, _AT_ONCE = torch.empty(0), Link()


class Ranks(Protocol):
    """Those that are served, of which one runs at a time."""

    size: int
    clocks: list[float]
    stopped: set[int]

    def switch(self, rank: int) -> None:
        """Let those go on first whose clock is behind that of a rank."""

    def give(self, slot: Slot, rank: int, result: Any) -> None:
        """A rank has a result."""


class VirtualServices:
    """The services of all ranks.

    Args:
        world: the ranks.
        network: their links.
        uplinks: when each rank's link is free again.
    """

    def __init__(self, world: Ranks, network: SimulatedNetwork, uplinks: Timeline) -> None:
        self._world, self._network, self._uplinks = world, network, uplinks
        self._answering: dict[tuple[int, Desk], Service] = {}
        self._counters: dict[tuple[int, Desk], ByteCounters] = {}
        # By server, who asked and desk, in turn: a rank may ask again before it is answered.
        self._asked: defaultdict[tuple[int, int, Desk], deque[Answers]] = defaultdict(deque)
        self._downlinks = Timeline(world.size)  # of answers: what all send arrives as fast as it leaves
        self._goodbyes: defaultdict[tuple[int, Desk], Slot] = defaultdict(Slot)  # that a server has heard
        self.events, self.failures = Events(self._expire), Failures()

    def __bool__(self) -> bool:
        return bool(self._answering)

    def serve(self, rank: int, desk: Desk, service: Service, counters: ByteCounters) -> None:
        """Have a rank's service answer at a desk, on its own clock, and count what it moves there."""
        self._counters[rank, desk] = counters
        self._answering[rank, desk] = service
        self.events.now = self._world.clocks[rank]
        service.now = lambda: self.events.now
        self.events.set_alarm(rank, desk, service.due())

    def ask(self, rank: int, desk: Desk, request: Request) -> Slot:
        """Hand a request to the services of those that are asked, in the order of virtual time."""
        self._world.switch(rank)  # those whose clock is behind ask first
        slot = Slot()
        begin, at_once = self._world.clocks[rank], rank in self._world.stopped
        asked = Answers(slot, request, dict(zip(request.asked, request.reply, strict=True)), at_once)
        link = _AT_ONCE if at_once else self._network.link(request, rank, self._world.size, desk[1])
        there = traffic(request, rank, self._world.size)[0] / link.bytes_per_second
        arrived = self._uplinks.depart(rank, begin, there, link.latency_seconds, link.burst_seconds)
        for server, sent in zip(request.asked, request.tensor, strict=True):
            row = sent.to("cpu", copy=True)  # services know no other device
            self._asked[server, rank, desk].append(asked)
            if server != rank:
                self._counters[server, desk].add(desk[1], received=row.nbytes)
            arrives = begin if server == rank else float(arrived)
            happens = partial(self._take_in, server, rank, desk, row)
            self.events.at(arrives, happens, turn(server, rank, self._world.size))
        while self.events.happen(begin):  # what takes no time needs no switch to another rank
            pass
        return slot

    def leave(self, rank: int, desk: Desk) -> Slot:
        """A rank asks nothing more at a desk; what it then waits for: that nobody does."""
        self._world.switch(rank)
        begin, goodbye = self._world.clocks[rank], Request(_NOTHING, _NOTHING)
        link = self._network.link(goodbye, rank, self._world.size, desk[1])
        # Behind what the rank has asked and is still on its way.
        arrived = self._uplinks.depart(rank, begin, 0.0, link.latency_seconds, link.burst_seconds)
        for server in range(self._world.size):
            arrives = begin if server == rank else float(arrived)
            happens = partial(self._take_leave, server, rank, desk)
            self.events.at(arrives, happens, turn(server, rank, self._world.size))
        return self._goodbyes[rank, desk]

    def _take_in(self, server: int, client: int, desk: Desk, row: Tensor) -> None:
        with self.failures.noted(server, desk):
            self._deliver(server, desk, self._answering[server, desk].answer(client, row))

    def _take_leave(self, server: int, client: int, desk: Desk) -> None:
        with self.failures.noted(server, desk):
            self._deliver(server, desk, self._answering[server, desk].leave(client))
        heard = self._goodbyes[server, desk]
        heard.posts[client] = Meeting()
        if len(heard.posts) == self._world.size:
            heard.ready_at[server] = self.events.now
            self.events.set_alarm(server, desk, None)
            self._world.give(self._goodbyes.pop((server, desk)), server, None)

    def _deliver(self, server: int, desk: Desk, answers: Sequence[tuple[int, Tensor]]) -> None:
        for client, reply in sorted(answers, key=lambda answer: turn(server, answer[0], self._world.size)):
            asked = self._asked[server, client, desk].popleft()
            asked.rows[server].copy_(reply)
            if server != client:
                self._counters[server, desk].add(desk[1], sent=reply.nbytes)
            if server == client or asked.at_once:
                self._take_answer(asked, server, client, self.events.now)
            else:
                self._send_answer(asked, server, client, desk)
        self.events.set_alarm(server, desk, self._answering[server, desk].due())

    def _send_answer(self, asked: Answers, server: int, client: int, desk: Desk) -> None:
        """It passes the link of who gives it, and then that of who asked, behind earlier ones."""
        now, link = self.events.now, self._network.link(asked.request, server, self._world.size, desk[1])
        seconds, burst = asked.rows[server].nbytes / link.bytes_per_second, link.burst_seconds
        left = float(self._uplinks.depart(server, now, seconds, 0.0, burst))

        def pass_downlink() -> None:
            begin, latency = self.events.now, link.latency_seconds
            ready = float(self._downlinks.depart(client, begin, seconds, latency, burst))
            self._take_answer(asked, server, client, ready)

        self.events.at(max(now, left - seconds), pass_downlink)

    def _take_answer(self, asked: Answers, server: int, client: int, ready: float) -> None:
        slot, reply = asked.slot, asked.request.reply
        slot.posts[server] = asked.request
        slot.ready_at[client] = max(slot.ready_at.get(client, 0.0), ready)
        if len(slot.posts) == len(asked.rows):
            self._world.give(slot, client, reply)

    def _expire(self, server: int, desk: Desk) -> None:
        with self.failures.noted(server, desk):
            self._deliver(server, desk, self._answering[server, desk].expire())
