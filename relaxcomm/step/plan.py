"""What an algorithm does to a model, worked out once: every rule on every bucket, and what a step does."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.composition.rule import Rule
from relaxcomm.primitives.payloads.parameters import parameters
from relaxcomm.primitives.triggers.every import every
from relaxcomm.primitives.triggers.every_step import every_step
from relaxcomm.replica.gradient_buffer import GradientBuffer
from relaxcomm.replica.gradient_in_place import GradientInPlace, can_stay
from relaxcomm.roles import Context, VotingTrigger
from relaxcomm.tensors.bucket_building import build_buckets
from relaxcomm.tensors.buckets import Bucket, Item


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
    def place(self) -> tuple[int, int]:
        """Where its state is kept: the rule and the bucket."""
        return self.index, self.bucket.index

    @cached_property
    def of_buffers(self) -> bool:
        """Whether it averages buffers, beside a rule of parameters."""
        return self.label == _BUFFERS

    @cached_property
    def operations(self) -> int:
        """How many operations one exchange issues."""
        return self.rule.compressor.facts.rounds * self.rule.exchange.facts.operations

    @cached_property
    def carries_flags(self) -> bool:
        """Whether entries behind the bucket's own come through; a server knows the bucket alone."""
        exchange = self.rule.exchange.facts
        adds_up = exchange.collective and exchange.returns != "robust mean"  # which leaves a lone flag out
        return self.rule.compressor.facts.scope == "entry" and adds_up

    @cached_property
    def moves_gradient(self) -> bool:
        """Whether its result takes the gradient's place, which an outer that only observes leaves alone."""
        return bool(self.rule.outer.facts.moves_model)

    @cached_property
    def parts(self) -> bool:
        """Whether ranks take part together and get different results."""
        return self.rule.exchange.facts.collective and not self.rule.exchange.facts.same_result


_BUFFERS = "buffers"
_LARGE_SHARE = 2  # of a bucket: many messages cost more than copies where a round trip is long
_FIRST_BYTES = 1 << 20


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
            index: _buffer_rule(rule)
            for index, rule in enumerate(algorithm.rules)
            if rule.payload.facts.moves_model and rule.exchange.facts.collective
        }
        self._buffer_tasks: dict[int, list[Task]] = {}

    def lay_out(self, names: Sequence[Sequence[str]]) -> list[Bucket]:
        """Make buckets that hold just these parameters, and every rule's tasks.

        Args:
            names: of each bucket's parameters, the same on all ranks.
        """
        made = [Bucket(place, [self._items[name] for name in held]) for place, held in enumerate(names)]
        covering = [self.algorithm.covering(bucket.names[0]) for bucket in made]
        self.tasks = tuple(
            tuple(Task(index, rule, bucket, str(index)) for bucket in made if index in covering[bucket.index])
            for index, rule in enumerate(self.algorithm.rules)
        )
        self.buckets = made
        return made

    def of_bucket(self, bucket: Bucket, site: str) -> list[Task]:
        """The tasks of one bucket at a site, in declared order."""
        return [
            task
            for tasks in self.tasks
            for task in tasks
            if task.bucket is bucket and task.rule.payload.facts.site == site
        ]

    def gradients_of(self, bucket: Bucket) -> GradientBuffer | GradientInPlace:
        """What holds the gradients of a bucket."""
        first, *others = bucket.items
        stays = not others and _stays(first, self.algorithm)
        return GradientInPlace(bucket) if stays else GradientBuffer(bucket)

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
                if rule.is_active(step) and rule.trigger.fires(context(rule))
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


def fill_buckets(
    items: Iterable[Item], order: Sequence[str], algorithm: Algorithm, bucket_bytes: int
) -> list[tuple[str, ...]]:
    """Names of the parameters of each bucket: rules that differ, or look at whole models, part them.

    A large gradient that can stay where it is has a bucket of its own. Where entries of a GPU's gradients are
    sent, the first bucket is small, as DistributedDataParallel's: the network begins when backward does. On a
    CPU, which does both, one bucket more costs more than that gains.

    Args:
        items: the trainable parameters.
        order: their names, as they go into buckets.
        algorithm: whose rules cover them.
        bucket_bytes: a bucket's capacity.
    """

    def is_whole(item: Item) -> bool:
        """Whether a compressor looks at the whole model when it codes a parameter's entries."""
        rules = (algorithm.rules[index] for index in algorithm.covering(item.name))
        return any(rule.compressor.facts.scope == "model" for rule in rules)

    def key(item: Item) -> Hashable:
        covering = algorithm.covering(item.name)
        is_large = item.share_bytes >= bucket_bytes / _LARGE_SHARE and _stays(item, algorithm)
        return (covering, item.name) if is_large else covering

    by_name = {item.name: item for item in items}
    on_gpu = any(item.tensor.device.type != "cpu" for item in by_name.values())
    begins_early = on_gpu and all(map(_sends_entries, algorithm.rules))
    buckets = build_buckets(
        (by_name[name] for name in order),
        bucket_bytes=bucket_bytes,
        first_bytes=_FIRST_BYTES if begins_early else bucket_bytes,
        key=key,
        whole=is_whole,
    )
    return [bucket.names for bucket in buckets]


def _stays(item: Item, algorithm: Algorithm) -> bool:
    """Whether a gradient is exchanged where autograd has put it."""
    rules = (algorithm.rules[index] for index in algorithm.covering(item.name))
    return can_stay(item) and all(_takes_as_it_is(rule, item.tensor.numel()) for rule in rules)


def _sends_entries(rule: Rule) -> bool:
    """Whether a rule sends gradients entry by entry while backward goes on; codes of buckets cost more."""
    at_once = rule.payload.facts.site == "backward" and not rule.delay
    return at_once and rule.compressor.facts.scope == "entry"


def _takes_as_it_is(rule: Rule, numel: int) -> bool:
    """Whether a rule sends gradients entry by entry, in full, and puts the result in their place."""
    sent, exchange = rule.compressor, rule.exchange.facts
    replaces = rule.payload.facts.site == "backward" and not rule.delay and rule.outer.facts.moves_model
    return bool(
        replaces and exchange.takes_divided and sent.facts.scope == "entry" and sent.contraction(numel) == 0.0
    )


def _buffer_rule(rule: Rule) -> Rule:
    """How the buffers that go with a rule are averaged: in full precision, over the same exchange."""
    # When it runs is decided by the rule that it goes with.
    trigger = every(steps=max(1, rule.delay)) if isinstance(rule.delay, int) else every_step()
    return Rule(
        payload=parameters(), exchange=rule.exchange.without_memory, trigger=trigger, delay=rule.delay
    )
