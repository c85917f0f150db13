"""Rule and Algorithm: an algorithm is a tuple of rules."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, field, replace
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from relaxcomm.composition import fragments, legality
from relaxcomm.composition.planner import Chooser
from relaxcomm.data.clients import RoundPlan
from relaxcomm.errors import CompositionError
from relaxcomm.fields.frozen import frozen
from relaxcomm.primitives.compressors.identity import identity
from relaxcomm.primitives.outers.average import average
from relaxcomm.primitives.triggers.every_step import every_step
from relaxcomm.roles import Compressor, Controller, Exchange, Outer, Payload, Primitive, Trigger
from relaxcomm.topology import Topology


def _listed(select: object) -> object:
    """One pattern may stand alone, and a list is as good as a tuple."""
    if isinstance(select, str):
        return (select,)
    return tuple(select) if isinstance(select, list) else select


StepCount = Annotated[int, Field(ge=0)]


@frozen
class Rule:
    """When, what, how, over what, how late, and what then.

    Args:
        payload: what is exchanged.
        exchange: over what and with whom.
        trigger: when; every step unless given.
        compressor: how it is encoded; full precision unless given.
        delay: how many optimizer steps late the result is applied, or "unbounded": in the first step by
            which it has arrived, and until then nothing more is sent.
        outer: how the result moves the model; plain averaging unless given.
        select: a parameter name, or several, exact or as glob patterns such as `"encoder.*"`, or `"k/n"`: the
            k-th of n fragments of about equal size, cut in the model's order; None for all.
        active: first step in which the rule is active, and the first in which it no longer is (or None).

    Raises: ConfigError for an argument of the wrong type or range; CompositionError for primitives
        that cannot work together.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import all_reduce, deltas, every, nesterov
        >>> outer = nesterov(lr=0.7, momentum=0.9)
        >>> rule = Rule(trigger=every(steps=2), payload=deltas(), exchange=all_reduce(), outer=outer)
        >>> trajectory(rule, [[1.0, 3.0]] * 2)
        tensor([[1.0000, 3.0000],
                [5.3200, 5.3200]])
    """

    _: KW_ONLY
    payload: Payload
    exchange: Exchange
    trigger: Trigger = field(default_factory=every_step)
    compressor: Compressor = field(default_factory=identity)
    delay: StepCount | Literal["unbounded"] = 0
    outer: Outer = field(default_factory=average)
    select: Annotated[tuple[str, ...] | None, BeforeValidator(_listed)] = None
    active: tuple[StepCount, StepCount | None] = (0, None)

    def __post_init__(self) -> None:
        legality.check_rule(self)

    @property
    def primitives(self) -> dict[str, Primitive]:
        """The primitives by role, in the order of the sentence."""
        return {
            "trigger": self.trigger,
            "payload": self.payload,
            "compressor": self.compressor,
            "exchange": self.exchange,
            "outer": self.outer,
        }

    def is_active(self, step: int) -> bool:
        """Whether `step` lies in the rule's range."""
        start, stop = self.active
        return start <= step and (stop is None or step < stop)

    def due(self, step: int) -> float:
        """The step in which a result that is sent off in `step` is applied; infinity if that is not known."""
        return math.inf if self.delay == "unbounded" else step + self.delay

    def covers(self, name: str) -> bool:
        """Whether the rule applies to the parameter `name`."""
        return self.select is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.select)

    def over(self, sizes: Mapping[str, int]) -> Rule:
        """This rule for a model: fragments are replaced by the names that lie in them.

        Args:
            sizes: of all parameters, in the model's order.

        Raises: CompositionError if there are fewer parameters than fragments.
        """
        if self.select is None or not any(fragments.is_fragment(one) for one in self.select):
            return self
        return replace(self, select=fragments.resolve(self.select, sizes))

    @property
    def keeps_replicas_equal(self) -> bool:
        """Whether workers that start a step with equal parameters end it so, in every step."""
        always = self.trigger.known == "start" and self.trigger.period_steps == 1 and self.active == (0, None)
        return self.payload.site == "backward" and always and self.exchange.same_result

    def __repr__(self) -> str:
        defaults = {"compressor": identity(), "outer": average()}
        shown = [repr(value) for role, value in self.primitives.items() if defaults.get(role) != value]
        shown += [f"delay={self.delay!r}"] if self.delay else []
        shown += [f"select={list(self.select)}"] if self.select is not None else []
        shown += [f"active={self.active}"] if self.active != (0, None) else []
        return f"Rule({', '.join(shown)})"


@frozen
class Algorithm:
    """A named tuple of rules, checked when it is built.

    Args:
        rules: run in this order wherever several act in one step.
        name: what listings and metrics call it.
        controllers: watch rules and write named values, such as the batch size.
        chooser: measures the first steps, and then chooses the algorithm to go on with.

    Raises: CompositionError for rules that cannot work together, or that disturb what a chooser measures.

    Example:
        >>> from relaxcomm import Algorithm, Rule, trajectory
        >>> from relaxcomm.primitives import all_reduce, every, gradients, parameters
        >>> first = Rule(payload=gradients(), exchange=all_reduce(), active=(0, 2))
        >>> seldom = every(steps=2)
        >>> later = Rule(trigger=seldom, payload=parameters(), exchange=all_reduce(), active=(2, None))
        >>> trajectory(Algorithm((first, later), name="mine"), [[1.0, 3.0]] * 4)
        tensor([[2., 2.],
                [4., 4.],
                [5., 7.],
                [8., 8.]])
    """

    rules: tuple[Rule, ...]
    name: str = "custom"
    controllers: tuple[Controller, ...] = ()
    chooser: Chooser | None = None

    def __post_init__(self) -> None:
        legality.check_rules(self.rules)
        legality.check_controllers(self.controllers, self.rules)
        if self.chooser is not None:
            legality.check_chooser(self.chooser, self.rules)

    def at(self, site: str) -> tuple[tuple[int, Rule], ...]:
        """The rules whose payload is read at `site`, with their index."""
        return tuple((index, rule) for index, rule in enumerate(self.rules) if rule.payload.site == site)

    def check_topology(self, topology: Topology) -> None:
        """Refuse a topology that cannot be used.

        Raises: CompositionError, saying which can.
        """
        legality.check_topology(self.rules, topology)

    def over(self, sizes: Mapping[str, int]) -> Algorithm:
        """This algorithm for a model, see `Rule.over`."""
        rules = tuple(rule.over(sizes) for rule in self.rules)
        return self if rules == self.rules else replace(self, rules=rules)

    def covering(self, name: str) -> tuple[int, ...]:
        """Indices of the rules that apply to the parameter `name`.

        Raises: CompositionError if there is none, since its replicas would drift apart in silence,
            or if two of them cannot work together.
        """
        found = tuple(index for index, rule in enumerate(self.rules) if rule.covers(name))
        if not any(self.rules[index].outer.target for index in found):
            raise CompositionError(
                f"no rule selects the parameter {name!r}, so its replicas would drift apart; widen a "
                f"rule's select, which are now: {[rule.select for rule in self.rules]}"
            )
        legality.check_together([self.rules[index] for index in found], name)
        return found

    @property
    def keeps_step(self) -> bool:
        """Whether all workers take part in every exchange, in the same step."""
        return all(rule.exchange.collective and rule.trigger.known != "event" for rule in self.rules)

    @property
    def plan(self) -> RoundPlan | None:
        """What clients do between two exchanges, or None if there are none."""
        return next((plan for rule in self.rules if (plan := rule.trigger.plan()) is not None), None)

    @property
    def lets_replicas_differ(self) -> bool:
        """Whether workers may hold different parameters between two exchanges."""
        return not all(rule.keeps_replicas_equal for rule in self.rules if rule.outer.target)

    @property
    def needs(self) -> frozenset[str]:
        """Values that must exist before the first step."""
        triggers = [rule.trigger.needs for rule in self.rules]
        return frozenset[str]().union(*triggers, *(controller.needs for controller in self.controllers))

    def __repr__(self) -> str:
        chooser = () if self.chooser is None else (self.chooser,)
        return f"Algorithm({self.name}: {'; '.join(map(repr, (*self.rules, *self.controllers, *chooser)))})"
