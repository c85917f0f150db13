"""Waiting for Gloo's point-to-point operations in slices."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch import Tensor

from relaxcomm.network.endings import ended_at_exit
from relaxcomm.network.threaded_call import ThreadedCall


class ThreadedWork:
    """Point-to-point operations as one work that can be waited for in slices.

    On Gloo a `wait` that runs out closes the connection for good, and completion cannot be asked
    for. So a thread waits once, with the whole limit, and the caller waits for the thread.

    Args:
        works: what `batch_isend_irecv` returned.
        limit: the longest wait for each.
        landings: tensors on a GPU, each with the pinned memory of the host into which Gloo writes for it.
    """

    def __init__(
        self, works: Sequence[Any], limit: timedelta, landings: Sequence[tuple[Tensor, Tensor]] = ()
    ) -> None:
        self._works, self._limit, self._landings = works, limit, landings
        self._call: ThreadedCall | None = None
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta) -> None:
        """Wait at most `timeout`; afterwards the current stream may use what came.

        Raises: RuntimeError if that was not enough, or if an operation failed.
        """
        self._started().wait(timeout)
        for tensor, came in self._landings:  # in the caller's stream, which may have used its memory before
            tensor.copy_(came, non_blocking=True)

    def is_completed(self) -> bool:
        """Whether all have ended, well or not."""
        return self._started().is_completed()

    def abandon(self) -> None:
        """End the thread: what it waits for is given up, and the connections with it."""
        if self._call is None or self._call.is_completed():
            return
        for work in self._works:
            with suppress(Exception):  # it runs out, which closes the connections and so wakes the thread
                work.wait(timedelta(milliseconds=1))
        with suppress(RuntimeError):
            self._call.wait(timedelta(seconds=1))

    def _started(self) -> ThreadedCall:
        with self._lock:  # a monitor may look just when the owner begins to wait
            if self._call is None:
                _waiting.add(self)
                self._call = ThreadedCall(self._wait_for_each)
            return self._call

    def _wait_for_each(self) -> None:
        for work in self._works:
            work.wait(self._limit)


_waiting = ended_at_exit(ThreadedWork.abandon)
