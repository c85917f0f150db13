"""Rule: when, what, how, over what, how late, and what then."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, field, replace
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from relaxcomm.composition import fragments, legality
from relaxcomm.fields.frozen import frozen
from relaxcomm.fields.names import listed
from relaxcomm.primitives.compressors.identity import identity
from relaxcomm.primitives.exchanges.all_reduce import all_reduce
from relaxcomm.primitives.outers.average import average
from relaxcomm.primitives.payloads.optimizer_state import optimizer_state
from relaxcomm.primitives.triggers.every_step import every_step
from relaxcomm.roles import Compressor, Exchange, Outer, Payload, Primitive, Trigger

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
    select: Annotated[
        tuple[str, ...] | None,
        BeforeValidator(listed, json_schema_input_type=str | tuple[str, ...] | None),
    ] = None
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

    def with_moments(self, slots: Iterable[str]) -> tuple[Rule, ...]:
        """This rule, and one for each slot that averages what the optimizers keep there in the same steps.

        Args:
            slots: names in the optimizer's state, such as "exp_avg" or "momentum_buffer".

        Returns: the rules; moments go in full precision, and are there at once.

        Example:
            >>> from relaxcomm import Rule
            >>> from relaxcomm.primitives import all_reduce, every, parameters
            >>> rule = Rule(trigger=every(steps=8), payload=parameters(), exchange=all_reduce(), delay=2)
            >>> rule.with_moments(["exp_avg"])[1]
            Rule(every(steps=8), optimizer_state(slots=('exp_avg',)), all_reduce())
        """
        plain = self.exchange if self.compressor == identity() else all_reduce()
        kept = replace(self, compressor=identity(), exchange=plain, delay=0, outer=average())
        return self, *(replace(kept, payload=optimizer_state(slots=(slot,))) for slot in slots)

    @property
    def moves_parameters(self) -> bool:
        """Whether the parameters, or the gradients that move them, are exchanged and the result is used."""
        payload = self.payload.facts
        return self.outer.facts.moves_model and (payload.site == "backward" or payload.moves_model)

    @property
    def makes_replicas_equal(self) -> bool:
        """Whether an exchange of it, after the optimizer's step, leaves equal parameters on all workers."""
        at_once = self.moves_parameters and not self.delay and self.exchange.facts.same_result
        return self.payload.facts.site == "step" and at_once and not self.payload.facts.keeps_local

    @property
    def keeps_replicas_equal(self) -> bool:
        """Whether workers that start a step with equal parameters end it so, in every step."""
        return self.keeps_replicas_equal_while_active and self.active == (0, None)

    @property
    def keeps_replicas_equal_while_active(self) -> bool:
        """Whether workers that start a step in which it is active with equal parameters end it so."""
        always = self.trigger.facts.known == "start" and self.trigger.facts.period_steps == 1
        return self.payload.facts.site == "backward" and always and self.exchange.facts.same_result

    def __repr__(self) -> str:
        defaults = {"compressor": identity(), "outer": average()}
        shown = [repr(value) for role, value in self.primitives.items() if defaults.get(role) != value]
        shown += [f"delay={self.delay!r}"] if self.delay else []
        shown += [f"select={list(self.select)}"] if self.select is not None else []
        shown += [f"active={self.active}"] if self.active != (0, None) else []
        return f"Rule({', '.join(shown)})"
