"""A trigger by the clock."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from relaxcomm.fields.frozen import Steps, frozen
from relaxcomm.primitives.triggers.every_step import every_step
from relaxcomm.roles import Context, Trigger, TriggerFacts


@frozen
class every(Trigger):
    """Exchange after each `steps` local steps, counted from the first step in which the rule is active.

    Fires at step t when `(t - start + 1) mod steps = 0`.

    Args:
        steps: local steps from one exchange to the next, in optimizer steps, at least 1.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import all_reduce, every, parameters
        >>> rule = Rule(trigger=every(steps=16), payload=parameters(), exchange=all_reduce())
        >>> replicas = trajectory(rule, [[1.0, 3.0]] * 40)
        >>> [step for step, (first, second) in enumerate(replicas) if first == second]
        [15, 31]

    Reference: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019.
    """

    steps: Steps

    @cached_property
    def facts(self) -> TriggerFacts:
        return replace(every_step.facts, period_steps=self.steps)

    def fires(self, cx: Context) -> bool:
        return (cx.step - cx.start + 1) % self.steps == 0
