"""Ends threads before Python ends: one that wakes in torch afterwards ends the process, by std::terminate."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakSet

T = TypeVar("T")


def ended_at_exit(end: Callable[[T], object]) -> WeakSet[T]:
    """A set of objects with threads; those that are left when the process exits are ended then.

    Args:
        end: one of them. Sets that were made later are ended first.

    Example:
        >>> import threading
        >>> waiting = ended_at_exit(threading.Event.set)
        >>> waiting.add(threading.Event())
    """
    living: WeakSet[T] = WeakSet()

    def end_all() -> None:
        for one in list(living):
            end(one)

    atexit.register(end_all)
    return living
