"""A Plan with the cost of every exchange."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.composition.exchange_cost import ExchangeCost, is_of_halves
from relaxcomm.errors import ConfigError
from relaxcomm.network.timeline import Times
from relaxcomm.planner.agreed import Agreed, agreed
from relaxcomm.planner.collectives import Collective, collective
from relaxcomm.planner.links import Links
from relaxcomm.planner.pairs import AllPairs, Pair, own_parts
from relaxcomm.planner.scenario import Scenario
from relaxcomm.planner.timetable import LEAST_STEPS, MOST_STEPS, UNEVEN_STEPS, Timetable
from relaxcomm.roles import Compressor
from relaxcomm.roles.payload import read_as
from relaxcomm.step.bucket_filling import fill_buckets
from relaxcomm.step.plan import Plan, Task
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from relaxcomm.tensors.layout import Layout

_MOST_BUCKETS = 64  # that are replayed one by one; of a larger model several count as one
_LEAST_FLIGHTS = 8


@dataclass(frozen=True, eq=False)
class PricedTask:
    """A task with its costs.

    Args:
        task: a rule on a bucket.
        cost: of one exchange, to a worker.
        travels: who waits for whom.
        operations: that wait for each other: seconds for which each occupies the links, and those of the
            latency of its messages, each `[ranks]` of the replay.
        busiest_bytes: through the busiest link, in one direction.
        known_operations: that the engine knows it will issue; answers leave by themselves.
    """

    task: Task
    cost: ExchangeCost
    travels: Collective
    operations: Sequence[tuple[Times, Times]]
    busiest_bytes: float
    known_operations: int


def _entry_bytes(task: Task) -> int:
    """Of an entry as it is read."""
    return read_as(task.rule.payload, task.bucket.dtype).itemsize


class PricedPlan:
    """An algorithm on a model in a scenario: what is sent, when, and what that costs.

    Args:
        algorithm: whose rules; one that a planner chooses has been chosen.
        items: the trainable parameters; shapes are enough.
        scenario: on what.

    Raises: as `Replay`.
    """

    def __init__(self, algorithm: Algorithm, items: Sequence[Item], scenario: Scenario) -> None:
        if not items:
            raise ConfigError("the model has no trainable parameters, so there is nothing to plan")
        self.scenario = scenario
        sizes = {item.name: item.parameter.numel() for item in items}
        self.algorithm = algorithm.over(sizes)
        self._plan = Plan(self.algorithm, items)
        whole = sum(item.share_bytes for item in items)
        most = min(rule.compressor.facts.most_entries for rule in self.algorithm.rules)
        capacity = max(scenario.bucket_bytes, int(min(whole // _MOST_BUCKETS, most)))
        order = [item.name for item in reversed(items)]  # as backward makes gradients
        filled = fill_buckets(items, order, self.algorithm, capacity, scenario.workers)
        self._buckets = self._plan.lay_out(filled)
        rules, workers = self.algorithm.rules, scenario.workers
        self.travels: list[Collective] = [collective(rule, scenario.topology, workers) for rule in rules]
        """How each rule's exchange travels, but where `_exact` is."""
        self._exact: dict[int, Collective] = {}  # of rules whose means are of halves that are rounded once
        self.timetable = Timetable(self.algorithm, scenario)
        self._costs: dict[tuple[int, tuple[torch.Size, ...], torch.dtype], ExchangeCost] = {}
        uneven = any(len(own_parts(leg.pairs)) > 1 for one in self.travels for leg in one.operations)
        alike = scenario.step_times.all_alike and scenario.links.uniform and not uneven
        self.ranks = 1 if alike else scenario.workers
        self._drawn: Times = np.zeros((0, self.ranks))

    @property
    def by_rule(self) -> Sequence[Sequence[Task]]:
        """The tasks of each rule."""
        return self._plan.tasks

    @cached_property
    def agreed(self) -> Sequence[Agreed]:
        """What all agree on besides, of each rule."""
        parameters = sum(len(bucket.items) for bucket in self._buckets)
        return [agreed(held[0], parameters) if held else Agreed() for held in self._plan.tasks]

    @cached_property
    def votes(self) -> tuple[int, int]:
        """How many numbers the ranks vote with in each step, 0 for none, and how late answers count."""
        triggers = self._plan.votes
        return 2 + len(triggers) if triggers else 0, min((one.vote_delay for one in triggers), default=0)

    def by_bucket(self) -> list[tuple[Bucket, list[Task]]]:
        """The buckets in the order of backward, with what exchanges their gradients."""
        return [(bucket, self._plan.of_bucket(bucket, "backward")) for bucket in self._buckets]

    def compute_seconds(self, first: int, steps: int = 1) -> Times:
        """What each rank computes in some steps since a replay began, `[steps, ranks]`."""
        return self._drawn[first : first + steps]

    def first_buckets(self) -> list[tuple[int, Layout, int]]:
        """Of each rule the index, with the first bucket's layout and its bytes an entry."""
        firsts = [held[0] for held in self._plan.tasks if held]
        return [(task.index, task.bucket.layout, _entry_bytes(task)) for task in firsts]

    def least_steps(self, links: Links) -> int:
        """Steps in which even exchanges that nobody waits for have come several times."""
        least = LEAST_STEPS if self.scenario.step_times.all_alike else UNEVEN_STEPS
        if all(rule.delay != "unbounded" for rule in self.algorithm.rules):
            return least
        flights = sum(self._under_way_seconds(index, links) for index in range(len(self.by_rule)))
        wanted = _LEAST_FLIGHTS * flights / self.scenario.step_times.seconds
        return int(min(max(least, wanted), MOST_STEPS))

    def outlasts_a_step(self, index: int, links: Links) -> bool:
        """Whether an exchange of a rule takes longer than a step."""
        return self._under_way_seconds(index, links) > self.scenario.step_times.seconds

    def _under_way_seconds(self, index: int, links: Links) -> float:
        """Of a rule's messages, one after the other."""
        tasks = [self.priced(task, links) for task in self.by_rule[index]]
        return sum(float(np.max(busy + latency)) for one in tasks for busy, latency in one.operations)

    def draw(self, steps: int) -> None:
        """Draw the times of as many steps, once."""
        if len(self._drawn) < steps:
            times, seed = self.scenario.step_times, self.scenario.seed
            self._drawn = times.draw(steps, self.ranks, seed)

    def priced(self, task: Task, links: Links) -> PricedTask:
        """What one exchange of a task costs."""
        layout, at_step = task.bucket.layout, task.rule.payload.facts.site == "step"
        known = task.index, layout.shapes, task.bucket.dtype
        last = task.rule.compressor.phases[-1][1]  # what it codes with in the end
        travels = self._travels_of(task, last)
        if known not in self._costs:
            self._costs[known] = self.scenario.cost(
                task.rule.exchange, last, layout, _entry_bytes(task), exact=at_step
            )
        cost = self._costs[known]
        operations, through = [], defaultdict[Sequence[Pair] | None, float](float)
        for leg in travels.operations:
            sent = cost.answer_bytes if leg.is_answer else cost.sent_bytes - cost.answer_bytes
            way, carried = links.way(leg.pairs), leg.share * sent
            # Of links that are shared, and of ranks that are replayed as one, the busiest decides for all.
            each_alone = links.uniform and self.ranks > 1
            parts = np.broadcast_to(own_parts(leg.pairs) if each_alone else 1.0, self.ranks)
            latency = leg.rounds * way.latency_seconds * np.sign(parts)
            operations.append((carried * way.seconds_per_byte * parts, latency))
            over = None if links.uniform and isinstance(leg.pairs, AllPairs) else leg.pairs
            through[over] += carried * way.busiest_bytes
        issued = task.operations(self.scenario.workers, self.scenario.topology)
        return PricedTask(task, cost, travels, operations, max(through.values(), default=0.0), issued)

    def _travels_of(self, task: Task, compressor: Compressor) -> Collective:
        """How a task's exchange travels; means of halves of parameters may be made otherwise."""
        at_step = task.rule.payload.facts.site == "step"
        if not (at_step and is_of_halves(compressor, task.bucket.layout, _entry_bytes(task))):
            return self.travels[task.index]
        if task.index not in self._exact:
            made = collective(task.rule, self.scenario.topology, self.scenario.workers, exact=True)
            self._exact[task.index] = made
        return self._exact[task.index]
