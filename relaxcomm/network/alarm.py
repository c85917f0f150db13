"""An alarm clock for a service that does something at a time, and not only when it is asked."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Alarm:
    """Rings once at the time that it was set to last, in a thread of its own.

    Args:
        now: seconds.
        ring: called with the time that was set.
    """

    def __init__(self, now: Callable[[], float], ring: Callable[[float], None]) -> None:
        self._now, self._ring = now, ring
        self._due: float | None = None
        self._timer: threading.Timer | None = None

    def set(self, due: float | None) -> None:
        """Ring at a time, and at no other any more; never for None."""
        if due == self._due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due, self._timer = due, None
        if due is not None:
            self._timer = threading.Timer(max(0.0, due - self._now()), self._ring, (due,))
            self._timer.daemon = True
            self._timer.start()
