"""Exchanges on their way, and the clocks of the ranks that wait for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relaxcomm.network.operations import Agree
from relaxcomm.network.timeline import Timeline, Times
from relaxcomm.network.traffic import messages
from relaxcomm.planner.links import Way
from relaxcomm.planner.priced_plan import PricedTask


@dataclass(eq=False)
class Flight:
    """An exchange on its way.

    Args:
        priced: the task.
        number: of the task's exchanges before.
        issued: of its operations; the last of them is on its way.
        posted: when that was.
        arrived: when what it brings is there.
        done: whether all has been taken in.
    """

    priced: PricedTask
    number: int
    issued: int
    posted: Times
    arrived: Times
    done: bool = False

    @property
    def has_more(self) -> bool:
        """Whether another of the operations that the engine knows of follows."""
        return self.issued < self.priced.known_operations

    @property
    def answer_is_next(self) -> bool:
        """Whether an answer leaves next, by itself."""
        legs = self.priced.travels.operations
        return self.issued < len(legs) and legs[self.issued].is_answer


class Flights:
    """The ranks of a replay and their links.

    Args:
        ranks: whose clocks differ; 1 where all are alike.
        workers: their number.
        way: of what all decide together.
    """

    def __init__(self, ranks: int, workers: int, way: Way) -> None:
        self.clocks: Times = np.zeros(ranks)
        self.spent = np.zeros(6)
        """Coding, exposed, waited, under way, bytes sent, through the busiest link."""
        self._workers, self._timeline = workers, Timeline(ranks)
        self._answering = Timeline(ranks)  # the links of those who answer and ask nobody
        self._burst_seconds, self._latency_seconds = way.burst_seconds, way.latency_seconds
        self._silent_from: Times = np.zeros(ranks)  # nothing of a rank's is under way since then
        self._rounds: dict[tuple[int, int], int] = {}

    def work(self, seconds: Times) -> None:
        """Let each rank compute."""
        self.clocks = self.clocks + seconds

    def launch(self, priced: PricedTask, window: list[Flight]) -> Flight:
        """Issue the first operation, and then the next of the flight before it, as the engine does."""
        self.spent[4:] += priced.cost.sent_bytes, priced.busiest_bytes
        flight = self._flight(priced)
        self._issue(flight)
        if window and window[-1].has_more:
            self.advance(window[-1])
        window.append(flight)
        return flight

    def advance(self, flight: Flight) -> None:
        """Wait for the operation on its way, and issue the next; an answer leaves by itself."""
        if flight.answer_is_next:
            self._depart(flight, flight.arrived, slice(None))
            return
        waited = np.maximum(flight.arrived - self.clocks, 0.0)
        under_way = np.maximum(flight.arrived - flight.posted, 1e-12)
        # The processor works for it all the while: what it does while others would compute is time of theirs.
        work = flight.priced.cost.work_seconds / flight.priced.cost.operations
        hidden = np.minimum(1.0, (self.clocks - flight.posted) / under_way)
        exposed = np.maximum(waited + work * hidden, work)
        self.clocks = self.clocks + exposed
        self.spent[1] += exposed.mean()
        self.spent[2] += waited.mean()
        self._code(flight.priced)
        if flight.issued < len(flight.priced.operations):
            self._issue(flight)
        else:
            flight.done = True

    def send_off(self, tasks: Sequence[PricedTask], ranks: NDArray[np.bool_]) -> Times:
        """Send from some ranks what nobody waits for; when it is there, of the others the time now."""
        share, flights = float(ranks.mean()), list[Flight]()
        for priced in tasks:
            self.clocks = self.clocks + ranks * self._work_for(priced, share)
            flights.append(self._flight(priced))
        for _ in flights[0].priced.operations:
            for flight in flights:
                self._depart(flight, flight.arrived, ranks)
        arrived: Times = np.max([flight.arrived for flight in flights], axis=0)
        return arrived

    def send_alone(self, tasks: Sequence[PricedTask], rank: int, begin: float) -> float:
        """Send from one rank, at a time that its clock may have passed; when it is there."""
        worked, share, arrived = begin, 1 / len(self.clocks), list[float]()
        for priced in tasks:
            worked += self._work_for(priced, share)
            arrived.append(worked)
        self.clocks = self.clocks.copy()
        self.clocks[rank] += worked - begin
        for number in range(len(tasks[0].operations)):
            for place, priced in enumerate(tasks):
                busy, latency = (seconds[rank] for seconds in priced.operations[number])
                start, burst = arrived[place], self._burst_seconds
                arrived[place] = float(self._timeline.depart(rank, start, busy, latency, burst))
        there, since = max(arrived), max(begin, self._silent_from[rank])
        self._silent_from[rank] = max(self._silent_from[rank], there)
        self.spent[3] += share * max(there - since, 0.0)
        return there

    def finish(self, flights: Iterable[Flight]) -> None:
        """Take exchanges in, in turn, so that their operations go on side by side."""
        flying = [one for one in flights if not one.done]
        while flying:
            for one in flying:
                self.advance(one)
            flying = [one for one in flying if not one.done]

    def ask(self, numbers: int) -> Times | None:
        """Ask what all decide together: few bytes, but their latency; when the answer is there."""
        if not numbers:
            return None
        latency = messages(Agree, self._workers, numbers) * self._latency_seconds
        arrived: Times = self._timeline.depart(slice(None), self.clocks, 0.0, latency)
        return np.full_like(arrived, arrived.max())

    def wait_for(self, asked: Times | None) -> None:
        """Wait for an answer, if anything was asked."""
        if asked is not None:
            waited = np.maximum(asked - self.clocks, 0.0)
            self.clocks = self.clocks + waited
            self.spent[1:3] += waited.mean()

    def _issue(self, flight: Flight) -> None:
        self._code(flight.priced)
        flight.posted = self.clocks
        self._depart(flight, self.clocks, slice(None))

    def _depart(self, flight: Flight, start: Times, ranks: slice | NDArray[np.bool_]) -> None:
        """Put the next operation on the links of some ranks."""
        travels, (busy, latency) = flight.priced.travels, flight.priced.operations[flight.issued]
        leg, flight.issued = travels.operations[flight.issued], flight.issued + 1
        line = self._answering if leg.is_apart else self._timeline
        arrived = start.copy()
        arrived[ranks] = line.depart(ranks, start[ranks], busy[ranks], latency[ranks], self._burst_seconds)
        heard = arrived if leg.is_answer else (leg.heard or travels.heard)(arrived, flight.number)
        flight.arrived = arrived.copy()
        flight.arrived[ranks] = heard[ranks]
        self._under_way(flight.arrived, start)

    def _flight(self, priced: PricedTask) -> Flight:
        """The next exchange of a task, of which nothing is issued yet."""
        number = self._rounds.get(priced.task.key, 0)
        self._rounds[priced.task.key] = number + 1
        return Flight(priced, number, 0, self.clocks, self.clocks)

    def _work_for(self, priced: PricedTask, share: float) -> float:
        """Seconds of an exchange that nobody waits for, in which a share of the ranks takes part."""
        cost = priced.cost
        self.spent[:2] += share * cost.coding_seconds, share * cost.work_seconds
        self.spent[4:] += share * cost.sent_bytes, share * priced.busiest_bytes
        return cost.coding_seconds + cost.work_seconds

    def _under_way(self, arrived: Times, posted: Times) -> None:
        since = np.maximum(posted, self._silent_from)
        self._silent_from = np.maximum(self._silent_from, arrived)
        self.spent[3] += np.maximum(arrived - since, 0.0).mean()

    def _code(self, priced: PricedTask) -> None:
        """There, or back, a part of it with each operation."""
        seconds = priced.cost.coding_seconds / (2 * priced.cost.operations)
        self.clocks = self.clocks + seconds
        self.spent[0] += seconds
