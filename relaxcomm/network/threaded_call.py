"""Calls that may never return, waited for in slices."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta


class ThreadedCall:
    """A call in a thread of its own, as a work.

    Args:
        call: that nothing but other ranks, or an abort, can end.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        self._done = threading.Event()
        self._error: Exception | None = None
        # A daemon: a call that never returns must not hold up the end of the process.
        threading.Thread(target=self._run, args=(call,), daemon=True, name="relaxcomm-call").start()

    def wait(self, timeout: timedelta) -> None:
        """Wait at most `timeout`.

        Raises: RuntimeError if that was not enough; what the call raised.
        """
        if not self._done.wait(timeout.total_seconds()):
            raise RuntimeError(f"not complete within {timeout.total_seconds():g} s")
        if self._error is not None:
            raise self._error

    def is_completed(self) -> bool:
        """Whether it has returned, or raised."""
        return self._done.is_set()

    def _run(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            self._error = error
        finally:
            self._done.set()
