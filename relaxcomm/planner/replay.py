"""A Plan replayed in virtual time: nobody trains, and no tensor of the model is made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.network.operations import Agree
from relaxcomm.network.timeline import Timeline, Times
from relaxcomm.network.traffic import messages
from relaxcomm.planner.links import Links
from relaxcomm.planner.priced_plan import PricedPlan, PricedTask
from relaxcomm.planner.scenario import Scenario
from relaxcomm.tensors.buckets import Item


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


def shapes_only(shapes: Sequence[Sequence[int]], dtype: torch.dtype = torch.float32) -> list[Item]:
    """Parameters of which only the shapes are there, whatever their size.

    Args:
        shapes: in the model's order.
        dtype: of all of them.

    Example:
        >>> sum(item.tensor.numel() for item in shapes_only([(100_000, 1_000_000)]))
        100000000000
    """
    made = (torch.empty(tuple(shape), dtype=dtype, device="meta") for shape in shapes)
    return [Item(str(index), tensor) for index, tensor in enumerate(made)]


class Replay:
    """An algorithm on a model in a scenario, to be run as often as wanted.

    Args:
        algorithm: whose rules; one that a planner chooses has been chosen.
        items: the trainable parameters; shapes are enough.
        scenario: on what.

    Raises: CompositionError for fewer parameters than fragments; TopologyError for a graph that the algorithm
        cannot use, or that links do not reach over.

    Example:
        >>> from relaxcomm import Link
        >>> from relaxcomm.planner.links import OwnLinks
        >>> from relaxcomm.planner.scenario import Scenario, StepTimes
        >>> from relaxcomm_algorithms.local_sgd import local_sgd
        >>> scenario = Scenario(4, StepTimes(0.1), OwnLinks(Link(bytes_per_second=12.5e6)))
        >>> replay = Replay(local_sgd(steps=8), shapes_only([(1000, 1000)]), scenario)
        >>> round(replay.run().step_seconds, 3)  # 6 MB every 8 steps take 0.48 s
        0.16
    """

    def __init__(self, algorithm: Algorithm, items: Sequence[Item], scenario: Scenario) -> None:
        self.plan = PricedPlan(algorithm, items, scenario)
        self.scenario = scenario

    def run(
        self, steps: int | None = None, *, first: int | None = None, links: Links | None = None
    ) -> Replayed:
        """Replay steps.

        Args:
            steps: how many count; some whole cycles unless given.
            first: the first that counts, 0 for a run from its beginning; unless given `settled_from`, and
                nothing is replayed from before the last of the rules begins or ends.
            links: other ones than the scenario's.
        """
        begin, first = (self.plan.last_change, self.plan.settled_from) if first is None else (0, first)
        links = links or self.scenario.links
        steps = steps or self.plan.cycle * math.ceil(self.plan.least_steps(links) / self.plan.cycle)
        self.plan.draw(first + steps - begin)
        return _Run(self.plan, links, begin).steps(first, steps)


@dataclass(eq=False)
class _Flight:
    priced: PricedTask
    posted: Times
    arrived: Times
    due: float


class _Run:
    """One run of a replay."""

    def __init__(self, plan: PricedPlan, links: Links, begin: int) -> None:
        self._plan, self._backward, self._begin = plan, plan.scenario.step_times.backward, begin
        self._clocks: Times = np.zeros(plan.ranks)
        self._timeline = Timeline(plan.ranks)
        self._burst_seconds = links.way(None).burst_seconds
        self._latency_seconds = links.way(None).latency_seconds
        self._silent_from: Times = np.zeros(plan.ranks)  # nothing of a rank's is under way since then
        self._rounds: dict[tuple[int, int], int] = {}
        self._late: list[_Flight] = []
        self._spent = np.zeros(6)  # coding, exposed, waited, under way, bytes sent, through the busiest link
        tasks = {task: plan.priced(task, links) for held in plan.by_rule for task in held}
        self._by_rule = [[tasks[task] for task in held] for held in plan.by_rule]
        self._by_bucket = [(bucket, [tasks[task] for task in held]) for bucket, held in plan.by_bucket()]
        self._numel = sum(bucket.numel for bucket, _ in self._by_bucket)
        self._at_step = [i for i, r in enumerate(plan.algorithm.rules) if r.payload.facts.site == "step"]

    def steps(self, first: int, count: int) -> Replayed:
        """Run to the end of the last step; what is of those from `first` on."""
        began, spent = self._clocks, self._spent.copy()
        for step in range(self._begin, first + count):
            if step == first:
                began, spent = self._clocks.copy(), self._spent.copy()
            self._step(step)
        seconds = float((self._clocks - began).mean()) / count
        compute = float(self._plan.compute_seconds(first - self._begin, count).mean())
        coding, exposed, waited, under_way, sent, busiest = map(float, (self._spent - spent) / count)
        hidden = max(0.0, under_way - waited)
        return Replayed(seconds, compute, coding, exposed, hidden, sent, busiest)

    def _step(self, step: int) -> None:
        compute, fired = self._plan.compute_seconds(step - self._begin)[0], self._plan.fired(step)
        if not fired and not self._late:
            self._clocks = self._clocks + compute
            return
        backward = self._backward
        self._clocks = self._clocks + (1 - backward) * compute
        for bucket, tasks in self._by_bucket:
            self._clocks = self._clocks + backward * compute * (bucket.numel / self._numel)
            for priced in tasks:
                if priced.task.index in fired:
                    self._post(priced, step)
        self._agree(fired - {*self._at_step})
        self._land(step)
        for index in self._at_step:
            if index in fired:
                for priced in self._by_rule[index]:
                    self._post(priced, step)
                self._agree({index})  # the next rule reads what this one has written
                self._land(step)

    def _agree(self, fired: Iterable[int]) -> None:
        """Wait for what all decide together behind their messages: few bytes, but their latency."""
        if not (numbers := self._plan.agreed_numbers(fired)):
            return
        latency = messages(Agree, self._plan.scenario.workers, numbers) * self._latency_seconds
        arrived = self._timeline.depart(slice(None), self._clocks, 0.0, latency)
        waited = np.maximum(arrived.max() - self._clocks, 0.0)
        self._clocks = self._clocks + waited
        self._spent[1:3] += waited.mean()

    def _post(self, priced: PricedTask, step: int) -> None:
        rule, place = priced.task.rule, priced.task.place
        before = [one for one in self._late if one.priced.task.place == place]
        if rule.delay == "unbounded" and any((one.arrived > self._clocks).any() for one in before):
            return  # nothing more is sent until the last has arrived
        if rule.payload.facts.site == "step":  # one flight at a time
            self._late = [one for one in self._late if one not in before]
            for one in before:
                self._finish(one)
        self._code(priced)
        number = self._rounds.get(place, 0)
        self._rounds[place] = number + 1
        taken = priced.carried_seconds, priced.latency_seconds
        left = self._timeline.depart(slice(None), self._clocks, *taken, self._burst_seconds)
        arrived = priced.heard(left, number)
        since = np.maximum(self._clocks, self._silent_from)
        self._silent_from = np.maximum(self._silent_from, arrived)
        self._spent[3] += np.maximum(arrived - since, 0.0).mean()
        self._spent[4] += priced.cost.sent_bytes
        self._spent[5] += priced.busiest_bytes
        self._late.append(_Flight(priced, self._clocks, arrived, rule.due(step)))

    def _land(self, step: int) -> None:
        """Take in what is due."""
        due = [one for one in self._late if one.due <= step]
        self._late = [one for one in self._late if one.due > step]
        for one in due:
            self._finish(one)

    def _finish(self, flight: _Flight) -> None:
        waited = np.maximum(flight.arrived - self._clocks, 0.0)
        under_way = np.maximum(flight.arrived - flight.posted, 1e-12)
        # The processor works for it all the while: what it does while others would compute is time of theirs.
        work = flight.priced.cost.work_seconds
        hidden = np.minimum(1.0, (self._clocks - flight.posted) / under_way)
        exposed = np.maximum(waited + work * hidden, work)
        self._clocks = self._clocks + exposed
        self._spent[1] += exposed.mean()
        self._spent[2] += waited.mean()
        self._code(flight.priced)

    def _code(self, priced: PricedTask) -> None:
        seconds = priced.cost.coding_seconds / 2  # there, or back
        self._clocks = self._clocks + seconds
        self._spent[0] += seconds
