"""Calls that may never return, waited for in slices."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from relaxcomm.system.time_limit import in_thread


class ThreadedCall:
    """A call in a thread of its own, as a work.

    Args:
        call: that nothing but other ranks, or an abort, can end.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        self._future = in_thread(call)

    def wait(self, timeout: timedelta) -> None:
        """Wait at most `timeout`.

        Raises: RuntimeError if that was not enough; what the call raised.
        """
        with suppress(TimeoutError):  # quicker than futures' own wait
            self._future.exception(timeout.total_seconds())
        if not self._future.done():
            raise RuntimeError(f"not complete within {timeout.total_seconds():g} s")
        self._future.result()

    def is_completed(self) -> bool:
        """Whether it has returned, or raised."""
        return self._future.done()
