"""The trigger that always fires."""

from __future__ import annotations

from relaxcomm.fields.frozen import frozen
from relaxcomm.roles import Context, Trigger


@frozen
class every_step(Trigger):
    """Exchange in every step.

    Example:
        >>> every_step()
        every_step()
    """

    @property
    def period_steps(self) -> int:
        return 1

    def fires(self, cx: Context) -> bool:
        return True
