"""A time limit for calls that have none of their own."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")
_GRACE_SECONDS = 5.0
_AGAIN_SECONDS = 0.1


class Ended(BaseException):
    """Raised in a call whose time is over; no `Exception`, so that it is not taken for a failure."""


ENDINGS = (KeyboardInterrupt, GeneratorExit, Ended)
"""What ends a call from outside; whatever else is raised, by code that may raise anything, is its failure."""


def within(seconds: float, call: Callable[[], T], *, end: bool = False) -> T:
    """What `call` returns or raises.

    Args:
        seconds: the longest wait; the call then goes on in a thread that does not keep the process.
        call: one that releases the interpreter's lock while it waits.
        end: do not let it go on: `Ended` is raised in it and in the threads that it has started.

    Raises: TimeoutError when the time is over.
    """
    before = set(threading.enumerate())
    future = in_thread(call)
    if wait([future], seconds).not_done and end:
        _end(before)
    if future.done() and not isinstance(future.exception(), Ended):
        return future.result()
    raise TimeoutError(f"no answer within {seconds:g} s")


def in_thread(call: Callable[[], T]) -> Future[T]:
    """What a call will return or raise; its thread is a daemon: it may never end, and the process does.

    Args:
        call: in a thread of its own.
    """
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # handed over to who waits
            future.set_exception(error)

    threading.Thread(target=work, daemon=True, name="relaxcomm-call").start()
    return future


def _end(before: set[threading.Thread]) -> None:
    """Raise `Ended` in all younger threads until they are gone; one that waits in C ends when it returns.

    Not again in one that is on its way out, where others may wait for what it does last.
    """
    raise_in, ended = ctypes.pythonapi.PyThreadState_SetAsyncExc, ctypes.py_object(Ended)
    deadline = time.monotonic() + _GRACE_SECONDS
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        handled = sys._current_exceptions()
        for thread in left:
            if thread.ident is not None and not _is_ended(handled.get(thread.ident)):
                raise_in(ctypes.c_ulong(thread.ident), ended)
        time.sleep(_AGAIN_SECONDS)


def _is_ended(handled: object) -> bool:
    """Whether what a thread handles is `Ended`, before Python 3.12 in a triple."""
    return isinstance(handled[1] if isinstance(handled, tuple) else handled, Ended)
