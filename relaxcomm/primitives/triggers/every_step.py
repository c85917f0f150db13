"""The trigger that always fires."""

from __future__ import annotations

from typing import ClassVar

from relaxcomm.fields.frozen import frozen
from relaxcomm.roles import Context, Trigger, TriggerFacts


@frozen
class every_step(Trigger):
    """Exchange in every step.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import all_reduce, every_step, parameters
        >>> rule = Rule(trigger=every_step(), payload=parameters(), exchange=all_reduce())
        >>> trajectory(rule, [[1.0, 3.0], [0.0, 2.0]])
        tensor([[2., 2.],
                [3., 3.]])
    """

    facts: ClassVar[TriggerFacts] = TriggerFacts(
        known="start",
        event=None,
        period_steps=1,
        needs=frozenset(),
        looks_at=frozenset(),
        slots={},
    )

    def fires(self, cx: Context) -> bool:
        return True
