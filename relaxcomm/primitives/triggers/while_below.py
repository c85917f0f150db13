"""A trigger that follows another one up to a limit."""

from __future__ import annotations

from relaxcomm.errors import CompositionError
from relaxcomm.fields.frozen import frozen
from relaxcomm.roles import Context, Trigger


@frozen
class while_below(Trigger):
    """Follow another trigger as long as a value that a controller writes is below a limit.

    Args:
        trigger: the other one; not one that votes.
        value: name of the value, such as "batch_size".
        limit: the least value at which nothing is exchanged any more.

    Raises: CompositionError for a trigger that votes.

    Example:
        >>> while_below(trigger=every(steps=16), value="batch_size", limit=512)
        while_below(trigger=every(steps=16), value='batch_size', limit=512.0)
    """

    trigger: Trigger
    value: str
    limit: float

    def __post_init__(self) -> None:
        if self.trigger.known != "start":
            raise CompositionError(
                f"while_below cannot follow {self.trigger!r}, whose answer is known after backward only; "
                "choose every(steps=…) or every_step()"
            )

    @property
    def period_steps(self) -> int:
        return self.trigger.period_steps

    @property
    def needs(self) -> frozenset[str]:
        return self.trigger.needs | {self.value}

    def fires(self, cx: Context) -> bool:
        return cx.values[self.value] < self.limit and self.trigger.fires(cx)
