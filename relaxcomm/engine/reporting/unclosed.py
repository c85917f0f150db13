"""Sessions that nobody closes: when the process exits their logs are ended, and what may differ is said."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakSet

from relaxcomm.engine.loop.hooks import Hooks
from relaxcomm.engine.reporting import run_warnings
from relaxcomm.engine.reporting.metering import Metering
from relaxcomm.errors import worded
from relaxcomm.network.endings import at_exit
from relaxcomm.step.bound import Bound


class Unclosed:
    """A session until it is closed; one that is collected before the process exits is not forgotten.

    Args:
        metering: the session's.
        hooks: the session's.
        bound: tells of the algorithm that runs, on the model.
    """

    def __init__(self, metering: Metering, hooks: Hooks, bound: Callable[[], Bound]) -> None:
        self._metering, self._hooks, self._bound, self._is_open = metering, hooks, bound, True
        _open.add(self)
        at_exit(_end_all)

    def close(self) -> None:
        """The session has ended, or another process is to end it."""
        self._is_open = False

    def end(self) -> None:
        """End what this rank has for itself, and ask nobody: the others may be gone."""
        if not self._is_open:
            return
        self.close()
        error = getattr(sys, "last_value", None)  # which has ended the process, outside a `with` block
        if error is None and self._may_differ():
            run_warnings.warn_of_unclosed()
        with suppress(Exception):  # such as a device that failed: what else is to be ended has its turn
            self._metering.close(_STATUS if error is None else f"failed: {worded(error)}")

    def _may_differ(self) -> bool:
        """Whether this rank is to warn that ranks may end with different models."""
        bound = self._bound()
        is_told = self._hooks.are_hung and bound.world.size > 1 and not bound.world.process.rank
        return is_told and bound.world.statistics.steps > 0 and bound.replicas_may_differ

    def __del__(self) -> None:
        # Any thread may collect it, with any lock: what takes one waits until the process exits.
        if self._is_open:
            with suppress(Exception):
                _collected.append((self._may_differ(), self._metering.ending()))


_STATUS = "not closed"
_open: WeakSet[Unclosed] = WeakSet()
_collected: list[tuple[bool, Callable[[str], None]]] = []
"""Of each whether models may differ, and what ends its log; nothing that holds a model."""


def _end_all() -> None:
    for one in list(_open):
        one.end()
    while _collected:
        may_differ, end = _collected.pop(0)
        if may_differ:
            run_warnings.warn_of_unclosed()
        end(_STATUS)


def _forget() -> None:
    """In a forked process: they are its parent's to end."""
    for one in _open:
        one.close()
    _collected.clear()


os.register_at_fork(after_in_child=_forget)
