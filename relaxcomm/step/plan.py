"""What an algorithm does to a model, worked out once: every rule on every bucket, and what a step does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import inf
from typing import TypeAlias

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.composition.exchange_cost import is_of_halves, stages_of
from relaxcomm.composition.rule import Rule
from relaxcomm.replica.gradient_buffer import GradientBuffer
from relaxcomm.replica.gradient_in_place import GradientInPlace
from relaxcomm.roles import Context, VotingTrigger
from relaxcomm.roles.payload import read_as
from relaxcomm.roles.returned import is_yes
from relaxcomm.step.bucket_filling import stays_in_place
from relaxcomm.step.buffer_rule import buffer_rule
from relaxcomm.tensors.bucket_building import build_buckets
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from relaxcomm.tensors.memory_order import Strides
from relaxcomm.topology import Topology

TaskKey: TypeAlias = tuple[int, int]
"""A rule and a bucket."""


@dataclass(frozen=True, eq=False)
class Task:
    """One rule on one bucket.

    Args:
        index: of the rule.
        rule: with its primitives.
        bucket: of parameters, or of the model's buffers.
        label: of its operations.
    """

    index: int
    rule: Rule
    bucket: Bucket
    label: str

    @cached_property
    def key(self) -> TaskKey:
        """Where its state is kept: the rule and the bucket."""
        return self.index, self.bucket.index

    @cached_property
    def of_buffers(self) -> bool:
        """Whether it averages buffers, beside a rule of parameters."""
        return self.label == _BUFFERS

    def operations(self, world_size: int, topology: Topology) -> int:
        """How many operations one exchange issues."""
        stages = stages_of(self.rule.exchange, world_size, topology, exact=self._is_exact)
        return self.rule.compressor.facts.rounds * len(stages)

    @cached_property
    def _is_exact(self) -> bool:
        """Whether it takes means of float16 or bfloat16 that are rounded once, see `Context.exact`."""
        payload = self.rule.payload
        entry_bytes = read_as(payload, self.bucket.dtype).itemsize
        of_halves = is_of_halves(self.rule.compressor, self.bucket.layout, entry_bytes)
        return payload.facts.site == "step" and of_halves

    @cached_property
    def carries_flags(self) -> bool:
        """Whether entries behind the bucket's own come through; a server and slots know the bucket alone."""
        exchange = self.rule.exchange.facts
        adds_up = exchange.collective and exchange.returns == "mean"  # a robust one leaves a lone flag out
        keeps = bool(exchange.slots) or self.keeps_residuals
        return self.rule.compressor.facts.scope == "entry" and adds_up and not keeps

    @cached_property
    def moves_gradient(self) -> bool:
        """Whether its result takes the gradient's place, which an outer that only observes leaves alone."""
        return bool(self.rule.outer.facts.moves_model)

    @cached_property
    def sends_residuals(self) -> bool:
        """Whether a message may hold what earlier ones have left out."""
        return self.keeps_residuals and self.moves_gradient

    @cached_property
    def keeps_residuals(self) -> bool:
        """Whether what messages leave out is kept, which takes entries of the bucket alone."""
        return self.rule.exchange.keeps_residuals(self.rule.compressor)

    @cached_property
    def results_differ(self) -> bool:
        """Whether ranks take part together and get different results."""
        return self.rule.exchange.facts.collective and not self.rule.exchange.facts.same_result


_BUFFERS = "buffers"


class Plan:
    """The rules of an algorithm on the buckets of a model, which may only be known after the first backward.

    Args:
        algorithm: whose rules.
        items: the trainable parameters.
    """

    def __init__(self, algorithm: Algorithm, items: Sequence[Item]) -> None:
        self.algorithm = algorithm
        self.keeps_step = algorithm.keeps_step
        self.votes = tuple(
            dict.fromkeys(r.trigger for r in algorithm.rules if isinstance(r.trigger, VotingTrigger))
        )
        """The triggers on which the ranks vote; equal ones vote once."""
        self.buckets: list[Bucket] | None = None
        self.tasks: tuple[tuple[Task, ...], ...] = ((),) * len(algorithm.rules)
        """By rule, in the order of the buckets."""
        self._items = {item.name: item for item in items}
        self._rules: dict[tuple[str, str], list[tuple[int, Rule]]] = {}  # by site, and when triggers know
        for index, rule in enumerate(algorithm.rules):
            place = rule.payload.facts.site, rule.trigger.facts.known
            self._rules.setdefault(place, []).append((index, rule))
        self._buffer_rules = {
            index: buffer_rule(rule)
            for index, rule in enumerate(algorithm.rules)
            if rule.payload.facts.moves_model and rule.exchange.facts.collective
        }
        self._buffer_tasks: dict[int, list[Task]] = {}

    def lay_out(
        self, names: Sequence[Sequence[str]], strides: Sequence[Sequence[Strides]] | None = None
    ) -> list[Bucket]:
        """Make buckets that hold just these parameters, and every rule's tasks.

        Args:
            names: of each bucket's parameters, the same on all ranks.
            strides: with which each lies there, as where slots were made for it; by default its own.
        """
        made = [
            Bucket(place, [self._items[name] for name in held], None if strides is None else strides[place])
            for place, held in enumerate(names)
        ]
        covering = [self.algorithm.covering(bucket.names[0]) for bucket in made]
        self.tasks = tuple(
            tuple(Task(index, rule, bucket, str(index)) for bucket in made if index in covering[bucket.index])
            for index, rule in enumerate(self.algorithm.rules)
        )
        self.buckets = made
        return made

    @property
    def every_task(self) -> Iterator[Task]:
        """The tasks of all rules, one after the other."""
        return chain.from_iterable(self.tasks)

    def bucket(self, unit: int) -> Bucket:
        """A bucket by its index; state, services and tasks are made with the buckets."""
        assert self.buckets is not None, "it is laid out first"
        return self.buckets[unit]

    def of_bucket(self, bucket: Bucket, site: str) -> list[Task]:
        """The tasks of one bucket at a site, in declared order."""
        tasks = (task for task in self.every_task if task.bucket is bucket)
        return [task for task in tasks if task.rule.payload.facts.site == site]

    def equal_after(self, fired: Collection[int]) -> list[Bucket]:
        """The buckets whose parameters should be equal on all ranks after a step.

        Args:
            fired: the rules that have exchanged after the optimizer's step.
        """
        return [one for one in self.buckets or () if self.keeps_step and self._is_equal_after(one, fired)]

    def _is_equal_after(self, bucket: Bucket, fired: Collection[int]) -> bool:
        moving = {
            site: [task for task in self.of_bucket(bucket, site) if task.rule.moves_parameters]
            for site in ("backward", "step")
        }
        if last := [task.rule for task in moving["step"] if task.index in fired]:
            return last[-1].makes_replicas_equal
        return all(task.rule.keeps_replicas_equal for tasks in moving.values() for task in tasks)

    def gradients_of(self, bucket: Bucket) -> GradientBuffer | GradientInPlace:
        """What holds the gradients of a bucket."""
        first, *others = bucket.items
        stays = not others and stays_in_place(first, self.algorithm)
        return GradientInPlace(bucket) if stays else GradientBuffer(bucket)

    @cached_property
    def gradients_end(self) -> float:
        """The step from which on no rule on gradients is active."""
        ends = [rule.active[1] for _, rule in self.algorithm.at("backward")]
        return max((inf if end is None else end for end in ends), default=0)

    def for_buffers(self, index: int, items: Sequence[Item], bucket_bytes: int) -> list[Task]:
        """The tasks that average buffers together with a rule of parameters.

        Args:
            index: of the rule.
            items: the buffers as they are now: `.to()` replaces them.
            bucket_bytes: a bucket's capacity.
        """
        if index not in self._buffer_rules:
            return []
        known = self._buffer_tasks.get(index, [])
        held = [item.tensor for task in known for item in task.bucket.items]
        if len(held) != len(items) or any(a is not b.tensor for a, b in zip(held, items, strict=True)):
            buckets = build_buckets(items, bucket_bytes=bucket_bytes)
            rule = self._buffer_rules[index]
            known = self._buffer_tasks[index] = [Task(index, rule, one, _BUFFERS) for one in buckets]
        return known

    def at(
        self, site: str, step: int, context: Callable[[Rule], Context], *, known: str = "start"
    ) -> frozenset[int]:
        """The rules of a site that exchange now.

        Args:
            site: "backward" or "step".
            step: the clock.
            context: what a rule's primitives may know; with the ranks' answer where they have voted.
            known: of which rules, by when their triggers know it.
        """
        return frozenset(
            [
                index
                for index, rule in self._rules.get((site, known), ())
                if rule.is_active(step) and is_yes(rule.trigger.fires(context(rule)), "fires", rule.trigger)
            ]
        )

    def voting(self, site: str, step: int) -> list[VotingTrigger]:
        """The triggers whose votes decide on rules of a site in a step."""
        if not self.votes:
            return []
        rules = (rule for _, rule in self._rules.get((site, "backward"), ()) if rule.is_active(step))
        return list(dict.fromkeys(r.trigger for r in rules if isinstance(r.trigger, VotingTrigger)))

    def ballot(self, step: int) -> dict[VotingTrigger, Rule]:
        """The triggers on which a ballot is cast in a step, the same on all ranks, each with a rule."""
        found: dict[VotingTrigger, Rule] = {}
        for trigger in self.votes:
            for rule in self.algorithm.rules:
                if rule.trigger == trigger and rule.is_active(step):
                    found.setdefault(trigger, rule)
        return found
