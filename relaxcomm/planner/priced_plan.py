"""A Plan with the cost of every exchange, and when each rule exchanges."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.composition.exchange_cost import ExchangeCost, exchange_cost
from relaxcomm.composition.rule import Rule
from relaxcomm.data import RoundPlan
from relaxcomm.errors import ConfigError
from relaxcomm.network.timeline import Times
from relaxcomm.network.transport import Membership
from relaxcomm.planner.collectives import Collective, Heard, collective
from relaxcomm.planner.links import Links
from relaxcomm.planner.scenario import Scenario
from relaxcomm.roles import Context
from relaxcomm.roles.payload import read_as
from relaxcomm.roles.returned import is_yes
from relaxcomm.step.bucket_filling import fill_buckets
from relaxcomm.step.plan import Plan, Task
from relaxcomm.tensors.buckets import Bucket, Item
from relaxcomm.tensors.layout import Layout

_MOST_BUCKETS = 64  # that are replayed one by one; of a larger model several count as one
_LEAST_STEPS = 16
_LEAST_FLIGHTS = 8
_MOST_STEPS = 20_000
_MOST_IN_CYCLE = 2_000  # unless a rule's own period is longer


@dataclass(frozen=True, eq=False)
class PricedTask:
    """A task with its costs.

    Args:
        task: a rule on a bucket.
        cost: of one exchange, to a worker.
        heard: who waits for whom.
        carried_seconds: for which it occupies a worker's link.
        latency_seconds: of its messages in turn.
        busiest_bytes: through the busiest link, in one direction.
    """

    task: Task
    cost: ExchangeCost
    heard: Heard
    carried_seconds: float
    latency_seconds: float
    busiest_bytes: float


def _agrees(task: Task) -> bool:
    """Whether all must be asked if a result is finite, and wait for that at once."""
    alone = not task.rule.exchange.facts.collective
    return not (alone or task.rule.delay) and (task.parts or not task.carries_flags)


def _entry_bytes(task: Task) -> int:
    """Of an entry as it is read."""
    return read_as(task.rule.payload, task.bucket.dtype).itemsize


class PricedPlan:
    """An algorithm on a model in a scenario: what is sent when, and what that costs.

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
        capacity = max(scenario.bucket_bytes, whole // _MOST_BUCKETS)
        order = [item.name for item in reversed(items)]  # as backward makes gradients
        self._buckets = self._plan.lay_out(fill_buckets(items, order, self.algorithm, capacity))
        rules, workers = self.algorithm.rules, scenario.workers
        self.travels: list[Collective] = [collective(rule, scenario.topology, workers) for rule in rules]
        """How each rule's exchange travels."""
        firsts = [held[0] for held in self._plan.tasks if held]
        self._agreed = {one.index: self._agreed_by(one) for one in firsts if _agrees(one)}
        self._costs: dict[tuple[int, tuple[torch.Size, ...]], ExchangeCost] = {}
        self._fired: dict[int, frozenset[int]] = {}
        alike = scenario.step_times.all_alike and scenario.links.uniform
        self.ranks = 1 if alike else scenario.workers
        self._drawn: Times = np.zeros((0, self.ranks))

    @property
    def settled_from(self) -> int:
        """The first step from which all that is replayed comes again and again."""
        return self.last_change + min(self.period, _MOST_STEPS)

    @property
    def last_change(self) -> int:
        """The last step in which a rule begins, or no longer is active."""
        return max(one for rule in self.algorithm.rules for one in rule.active if one is not None)

    @property
    def period(self) -> int:
        """The most steps from one exchange of a rule to its next."""
        return max(map(self._period_of, self.algorithm.rules))

    @cached_property
    def cycle(self) -> int:
        """Steps after which all rules come again together; many, where those are too many or not known."""
        together = math.lcm(*map(self._period_of, self.algorithm.rules))
        if together <= _MOST_IN_CYCLE and not any(map(self.is_irregular, self.algorithm.rules)):
            return together
        return self.period * max(1, _MOST_IN_CYCLE // self.period)

    def is_irregular(self, rule: Rule) -> bool:
        """Whether its trigger fires more or less often than its period says, such as by chance."""
        first, facts = self.settled_from, rule.trigger.facts
        if facts.known != "start" or facts.needs or not rule.is_active(first):
            return False  # counted by its period
        period = facts.period_steps
        times = math.ceil(_LEAST_STEPS / period)
        steps = range(first, first + times * period)
        return sum(self._fires(rule, step) for step in steps) != times

    def _period_of(self, rule: Rule) -> int:
        if rule.trigger.facts.known == "event":
            plan = rule.trigger.round_plan() or RoundPlan(epochs=1, fraction=1.0, clients=None)
            return self.scenario.round_steps(plan)
        return rule.trigger.facts.period_steps

    @property
    def by_rule(self) -> Sequence[Sequence[Task]]:
        """The tasks of each rule."""
        return self._plan.tasks

    def agreed_numbers(self, rules: Iterable[int]) -> int:
        """On how many numbers all ranks must agree, which the messages of some rules do not tell; or 0."""
        return max((self._agreed.get(index, 0) for index in rules), default=0)

    def _agreed_by(self, task: Task) -> int:
        """Whether results are finite is one number, which parameters have a gradient one for each."""
        at_step = task.rule.payload.facts.site == "step"
        return 1 if at_step or task.carries_flags else sum(len(bucket.items) for bucket in self._buckets)

    def by_bucket(self) -> list[tuple[Bucket, list[Task]]]:
        """The buckets in the order of backward, with what exchanges their gradients."""
        return [(bucket, self._plan.of_bucket(bucket, "backward")) for bucket in self._buckets]

    def fired(self, step: int) -> frozenset[int]:
        """The rules that exchange in a step."""
        if step not in self._fired:  # asked once
            self._fired[step] = self._firing(step)
        return self._fired[step]

    def compute_seconds(self, first: int, steps: int = 1) -> Times:
        """What each rank computes in some steps since a replay began, `[steps, ranks]`."""
        return self._drawn[first : first + steps]

    def first_buckets(self) -> list[tuple[int, Layout, int]]:
        """Of each rule the index, with the first bucket's layout and its bytes an entry."""
        firsts = [held[0] for held in self._plan.tasks if held]
        return [(task.index, task.bucket.layout, _entry_bytes(task)) for task in firsts]

    def least_steps(self, links: Links) -> int:
        """Steps in which even exchanges that nobody waits for have come several times."""
        if all(rule.delay != "unbounded" for rule in self.algorithm.rules):
            return _LEAST_STEPS
        tasks = [self.priced(task, links) for held in self._plan.tasks for task in held]
        flights = sum(one.carried_seconds + one.latency_seconds for one in tasks)
        wanted = _LEAST_FLIGHTS * flights / self.scenario.step_times.seconds
        return int(min(max(_LEAST_STEPS, wanted), _MOST_STEPS))

    def draw(self, steps: int) -> None:
        """Draw the times of as many steps, once."""
        if len(self._drawn) < steps:
            times, seed = self.scenario.step_times, self.scenario.seed
            self._drawn = times.draw(steps, self.ranks, seed)

    def _firing(self, step: int) -> frozenset[int]:
        """The rules that exchange in a step; votes are taken to say yes."""
        rules = enumerate(self.algorithm.rules)
        return frozenset(index for index, rule in rules if rule.is_active(step) and self._fires(rule, step))

    def _fires(self, rule: Rule, step: int) -> bool:
        facts = rule.trigger.facts
        if facts.known == "event":
            return (step + 1) % self._period_of(rule) == 0
        if facts.needs:  # what controllers write is not known before
            return (step - rule.active[0] + 1) % facts.period_steps == 0
        context = Context(
            step,
            rule.active[0],
            Membership(0, self.scenario.workers),
            lambda bucket: 0.0,
            topology=self.scenario.topology,
            decided=True,
        )
        return is_yes(rule.trigger.fires(context), "fires", rule.trigger)

    def priced(self, task: Task, links: Links) -> PricedTask:
        """What one exchange of a task costs."""
        layout: Layout = task.bucket.layout
        known = task.index, layout.shapes
        last = task.rule.compressor.phases[-1][1]  # what it codes with in the end
        if known not in self._costs:
            self._costs[known] = exchange_cost(
                task.rule.exchange,
                last,
                layout,
                _entry_bytes(task),
                self.scenario.workers,
                self.scenario.topology,
                speeds=self.scenario.speeds,
                crowding=self.scenario.crowding,
            )
        travels, cost = self.travels[task.index], self._costs[known]
        ways = [(leg, links.way(leg.pairs)) for leg in travels.legs]
        sent = cost.sent_bytes
        return PricedTask(
            task,
            cost,
            travels.heard,
            carried_seconds=sum(sent * leg.share * way.seconds_per_byte for leg, way in ways),
            latency_seconds=sum(leg.rounds * way.latency_seconds for leg, way in ways),
            busiest_bytes=max((sent * leg.share * way.busiest_bytes for leg, way in ways), default=0.0),
        )
