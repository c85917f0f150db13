"""One run of a replay: the clocks of all ranks, and what is on its way between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np

from relaxcomm.network.timeline import Times
from relaxcomm.planner.flights import Flight, Flights
from relaxcomm.planner.links import Links
from relaxcomm.planner.priced_plan import PricedPlan
from relaxcomm.planner.rounds import Rounds
from relaxcomm.roles import VotingTrigger


@dataclass(frozen=True)
class Replayed:
    """What a step was like, on average over steps and workers.

    Args:
        step_seconds: of a step.
        compute_seconds: of it, without coding and communication.
        coding_seconds: of it, to encode and decode.
        exposed_seconds: of it, in which a worker waited, or worked for exchanges.
        hidden_seconds: of communication that went on while workers computed.
        sent_bytes: by a worker.
        busiest_bytes: through the busiest link.
    """

    step_seconds: float
    compute_seconds: float
    coding_seconds: float
    exposed_seconds: float
    hidden_seconds: float
    sent_bytes: float
    busiest_bytes: float

    @property
    def utilisation(self) -> float:
        """The share of time in which workers compute."""
        return min(1.0, self.compute_seconds / self.step_seconds)  # but for rounding


@dataclass(frozen=True, eq=False)
class _Sent:
    """What a rule has sent in one step: with what all agree on besides, in the step when it is due."""

    rule: int
    flights: Sequence[Flight]
    asked: Times | None
    step: int
    due: float


class ReplayedRun:
    """One run of a replay.

    Args:
        plan: what is replayed.
        links: between the workers.
        begin: the first step.
        without: rules that never exchange.
    """

    def __init__(self, plan: PricedPlan, links: Links, begin: int, without: Set[int]) -> None:
        self._plan, self._backward, self._begin = plan, plan.scenario.step_times.backward, begin
        self._flights = Flights(plan.ranks, plan.scenario.workers, links.way(None))
        self._without, self._late = without, list[_Sent]()
        self._ballots: deque[Times | None] = deque()  # under way
        self._free_from: dict[int, Times] = {}  # when all that a rule without due steps has sent is there
        self._rounds: dict[int, Rounds] = {}  # of such a rule in which all ranks take part
        tasks = {task: plan.priced(task, links) for held in plan.by_rule for task in held}
        self._by_rule = [[tasks[task] for task in held] for held in plan.by_rule]
        self._by_bucket = [(bucket, [tasks[task] for task in held]) for bucket, held in plan.by_bucket()]
        self._numel = sum(bucket.numel for bucket, _ in self._by_bucket)
        self._rules = plan.algorithm.rules
        sites = [rule.payload.facts.site for rule in self._rules]
        self._at_step = frozenset(index for index, site in enumerate(sites) if site == "step")
        self._at_backward = frozenset(range(len(sites))) - self._at_step

    def steps(self, first: int, count: int) -> Replayed:
        """Run to the end of the last step; what is of those from `first` on."""
        began, spent = self._flights.clocks, self._flights.spent.copy()
        for step in range(self._begin, first + count):
            if step == first:
                began, spent = self._flights.clocks.copy(), self._flights.spent.copy()
            self._step(step)
        seconds = float((self._flights.clocks - began).mean()) / count
        compute = float(self._plan.compute_seconds(first - self._begin, count).mean())
        coding, exposed, waited, under_way, sent, busiest = map(float, (self._flights.spent - spent) / count)
        hidden = max(0.0, under_way - waited)
        return Replayed(seconds, compute, coding, exposed, hidden, sent, busiest)

    def _step(self, step: int) -> None:
        """Compute, and send what is due, as the engine does."""
        compute = self._plan.compute_seconds(step - self._begin)[0]
        fired = self._plan.timetable.fired(step) - self._without
        if not (fired or self._late or self._plan.votes[0]):
            self._flights.work(compute)
            return
        self._flights.work((1 - self._backward) * compute)
        self._step_backward(step, compute, fired & self._at_backward)
        self._land(step, self._at_step)
        for sent in self._late:
            if sent.rule not in self._at_backward:
                self._go_on(sent, (step - sent.step) / (sent.due - sent.step))
        for index in sorted(fired & self._at_step):
            if self._rules[index].delay == "unbounded":
                self._send_unbounded(index)
            else:
                self._send(index, step)

    def _step_backward(self, step: int, compute: Times, fired: frozenset[int]) -> None:
        """Send buckets as their gradients become ready, and take in what is due."""
        window: list[Flight] = []
        late: dict[int, list[Flight]] = {}
        voted = {index for index in fired if isinstance(self._rules[index].trigger, VotingTrigger)}
        for bucket, tasks in self._by_bucket:
            self._flights.work(self._backward * compute * (bucket.numel / self._numel))
            for priced in [one for one in tasks if one.task.index in fired - voted]:
                index = priced.task.index
                if self._rules[index].delay:
                    late.setdefault(index, []).append(self._flights.launch(priced, []))
                else:
                    self._flights.launch(priced, window)
        agreed = [self._plan.agreed[index] for index in fired - voted]
        asked = self._flights.ask(max((one.beside for one in agreed), default=0))
        self._flights.finish(window)
        self._flights.wait_for(asked)
        for index, flights in late.items():
            self._late.append(_Sent(index, flights, None, step, self._rules[index].due(step)))
        self._land(step, self._at_backward)
        self._decide(max((one.behind for one in agreed), default=0))
        self._send_voted(voted)

    def _decide(self, behind: int) -> None:
        """Ask what comes behind results, and vote; wait for what is asked, and for votes that count now."""
        ballot, vote_delay = self._plan.votes
        asked = self._flights.ask(behind + ballot)
        if behind:
            self._flights.wait_for(asked)
        if ballot:
            self._ballots.append(asked)
        if len(self._ballots) > vote_delay:
            self._flights.wait_for(self._ballots.popleft())

    def _send_voted(self, voted: Set[int]) -> None:
        """Send gradients for which the ranks have voted, when all of them are there."""
        window: list[Flight] = []
        for _, tasks in self._by_bucket:
            for priced in [one for one in tasks if one.task.index in voted]:
                self._flights.launch(priced, window)
        self._flights.finish(window)
        behind = [self._plan.agreed[index].behind for index in voted]
        self._flights.wait_for(self._flights.ask(max(behind, default=0)))

    def _send(self, index: int, step: int) -> None:
        """Send what a rule covers; without a delay, take it in: the next rule reads what it has written."""
        rule = self._rules[index]
        flights = [self._flights.launch(priced, []) for priced in self._by_rule[index]]
        asked = self._flights.ask(self._plan.agreed[index].beside)
        self._late.append(_Sent(index, flights, asked, step, rule.due(step)))
        if not rule.delay:
            self._land(step, {index})

    def _send_unbounded(self, index: int) -> None:
        """Those ranks send again to which all has come; nobody waits for it."""
        tasks, clocks = self._by_rule[index], self._flights.clocks
        if len(clocks) > 1 and not all(priced.travels.waits_for_nobody for priced in tasks):
            rounds = self._rounds.setdefault(index, Rounds(len(clocks)))
            for rank, now in rounds.due(clocks):
                rounds.send(rank, self._flights.send_alone(tasks, rank, now))
            return
        free_from = self._free_from.get(index, clocks)
        free = clocks >= free_from
        if tasks and free.any():
            self._free_from[index] = np.where(free, self._flights.send_off(tasks, free), free_from)

    def _land(self, step: int, rules: Set[int]) -> None:
        """Take in what is due of some rules."""
        due = [sent for sent in self._late if sent.due <= step and sent.rule in rules]
        self._late = [sent for sent in self._late if sent not in due]
        for sent in due:
            self._flights.finish(sent.flights)
            self._flights.wait_for(sent.asked)
            if sent.rule in self._at_step:
                self._flights.wait_for(self._flights.ask(self._plan.agreed[sent.rule].behind))

    def _go_on(self, sent: _Sent, share: float) -> None:
        """Issue next operations after a share of the delay: each has an equal part of it to hide in."""
        for flight in sent.flights:
            if flight.has_more and flight.issued <= share * flight.priced.known_operations:
                self._flights.advance(flight)
