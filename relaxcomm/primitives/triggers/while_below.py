"""A trigger that follows another one up to a limit."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Annotated

from pydantic import Field

from relaxcomm.errors import CompositionError
from relaxcomm.fields.frozen import frozen
from relaxcomm.roles import Context, Trigger, TriggerFacts


@frozen
class while_below(Trigger):
    """Follow another trigger as long as a value that a controller writes is below a limit.

    Args:
        trigger: the other one; not one that votes.
        value: name of the value, such as "batch_size".
        limit: the least value at which nothing is exchanged any more.

    Raises: CompositionError for a trigger that votes.

    Example:
        >>> from relaxcomm import Algorithm, Rule, rehearse
        >>> from relaxcomm.primitives import all_reduce, every_step, gradients
        >>> from relaxcomm.primitives import sample_norm_test, while_below
        >>> trigger = while_below(trigger=every_step(), value="batch_size", limit=16)
        >>> rule = Rule(trigger=trigger, payload=gradients(), exchange=all_reduce())
        >>> test = sample_norm_test(rule=0, tolerance=0.25)  # makes batches of 8 samples larger
        >>> rehearse(Algorithm((rule,), name="at_first", controllers=(test,))).exchanges
        1
    """

    trigger: Trigger
    value: str
    limit: Annotated[float, Field(allow_inf_nan=False)]

    @cached_property
    def facts(self) -> TriggerFacts:
        followed = self.trigger.facts
        return replace(followed, needs=followed.needs | {self.value})

    def __post_init__(self) -> None:
        if self.trigger.facts.known != "start":
            raise CompositionError(
                f"while_below cannot follow {self.trigger!r}, whose answer is known after backward only; "
                "choose every(steps=…) or every_step()"
            )

    def fires(self, cx: Context) -> bool:
        return cx.values[self.value] < self.limit and self.trigger.fires(cx)
