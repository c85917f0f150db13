"""Ends threads before Python ends: one that wakes in torch afterwards ends the process, by std::terminate."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakSet

# Its functions have the default group of the moment as a default: imported later, as torch.compile does,
# they keep that group and its threads after `destroy_process_group`.
import torch.distributed.nn.functional  # noqa: F401

T = TypeVar("T")
_asked: set[tuple[int, Callable[[], object]]] = set()  # by process
_sets: list[_Living[Any]] = []


def at_exit(end: Callable[[], object]) -> None:
    """Call a function when this process exits, once; ask in the process that has something to end.

    What was registered at import is forgotten in a process that is forked off a server: from Python 3.13 on
    these begin without handlers.

    Args:
        end: also called in a process that was forked later, so it asks what there is.
    """
    asked = os.getpid(), end
    if asked not in _asked:
        _asked.add(asked)
        atexit.register(end)


def ended_at_exit(end: Callable[[T], object]) -> WeakSet[T]:
    """A set of objects with threads; those that are left when the process exits are ended then.

    Args:
        end: one of them. Sets that were made later are ended first.

    Example:
        >>> import threading
        >>> waiting = ended_at_exit(threading.Event.set)
        >>> waiting.add(threading.Event())
    """
    made = _Living(end)
    _sets.append(made)
    return made


class _Living(WeakSet[T]):
    def __init__(self, end: Callable[[T], object]) -> None:
        super().__init__()
        self._end = end

    def add(self, item: T) -> None:
        at_exit(_end_all)
        super().add(item)

    def end(self) -> None:
        for one in list(self):
            self._end(one)


def _end_all() -> None:
    for one in reversed(_sets):
        one.end()
