"""Waiting on the host for what is between GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

_POLL_SECONDS = 1e-4


class PolledWork:
    """An operation of NCCL's as a work that the host waits for: NCCL's own wait only orders the stream.

    Args:
        work: of torch's.
        error: what NCCL has found wrong; nothing otherwise. An operation that broke has ended, too.
    """

    def __init__(self, work: Any, error: Callable[[], str]) -> None:
        self._work, self._error = work, error

    def wait(self, timeout: timedelta) -> None:
        """Wait at most `timeout`; afterwards the current stream may use what came.

        Raises: RuntimeError if that was not enough, or if the operation failed.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        while not self._work.is_completed():
            if time.monotonic() >= deadline:
                raise RuntimeError(f"not complete within {timeout.total_seconds():g} s")
            time.sleep(_POLL_SECONDS)
        if wrong := self._error():
            raise RuntimeError(wrong)
        self._work.wait()

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return bool(self._work.is_completed())
