"""A time limit for calls into C++ that have none of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T]) -> T:
    """What `call` returns or raises.

    Args:
        seconds: the longest wait; the call then goes on in a thread that does not keep the process.
        call: one that releases the interpreter's lock while it waits.

    Raises: TimeoutError when the time is over.
    """
    returned: list[T] = []
    raised: list[BaseException] = []

    def work() -> None:
        try:
            returned.append(call())
        except BaseException as error:  # handed over to the caller
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not returned:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return returned[0]
