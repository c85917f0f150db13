"""What a rule says, and what follows from it without a model."""

from __future__ import annotations

import fnmatch
import math
from dataclasses import KW_ONLY, field
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from relaxcomm.fields.frozen import frozen
from relaxcomm.fields.names import listed
from relaxcomm.primitives.compressors.identity import identity
from relaxcomm.primitives.outers.average import average
from relaxcomm.primitives.triggers.every_step import every_step
from relaxcomm.roles import Compressor, Exchange, Outer, Payload, Primitive, Trigger

StepCount = Annotated[int, Field(ge=0)]


@frozen
class RuleParts:
    """The primitives and numbers of a `Rule`, which legality looks at while the rule is being made."""

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
