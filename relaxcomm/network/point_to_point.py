"""Waiting for Gloo's point-to-point operations in slices."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from relaxcomm.network.endings import ended_at_exit


class ThreadedWork:
    """Point-to-point operations as one work that can be waited for in slices.

    On Gloo a `wait` that runs out closes the connection for good, and completion cannot be asked
    for. So a thread waits once, with the whole limit, and the caller waits for the thread.

    Args:
        works: what `batch_isend_irecv` returned.
        limit: the longest wait for each.
    """

    def __init__(self, works: Sequence[Any], limit: timedelta) -> None:
        self._works, self._limit = works, limit
        self._done = threading.Event()
        self._error: RuntimeError | None = None
        self._thread: threading.Thread | None = None

    def wait(self, timeout: timedelta) -> None:
        """Wait at most `timeout`.

        Raises: RuntimeError if that was not enough, or if an operation failed.
        """
        self._start()
        if not self._done.wait(timeout.total_seconds()):
            raise RuntimeError(f"not complete within {timeout.total_seconds():g} s")
        if self._error is not None:
            raise self._error

    def is_completed(self) -> bool:
        """Whether all have ended, well or not."""
        self._start()
        return self._done.is_set()

    def abandon(self) -> None:
        """End the thread: what it waits for is given up, and the connections with it."""
        if self._thread is None or self._done.is_set():
            return
        for work in self._works:
            with suppress(Exception):  # it runs out, which closes the connections and so wakes the thread
                work.wait(timedelta(milliseconds=1))
        self._done.wait(1)

    def _start(self) -> None:
        if self._thread is None:
            _waiting.add(self)
            # A daemon: a peer that never answers must not hold up the end of the process.
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            for work in self._works:
                work.wait(self._limit)
        except RuntimeError as error:
            self._error = error
        finally:
            self._done.set()


_waiting = ended_at_exit(ThreadedWork.abandon)
