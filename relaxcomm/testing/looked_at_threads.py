"""Threads that begin while a GPU is pretended: what they know of its streams, and who learns it from them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch
from weakref import WeakKeyDictionary

from relaxcomm.testing.stream_clocks import Clock, Clocks, join


@contextmanager
def looked_at_threads(clocks: Clocks, inside: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """A thread knows what the one knows that starts it, and who joins it knows what it knew.

    Args:
        clocks: of threads.
        inside: around what a thread runs.
    """
    start, finish = threading.Thread.start, threading.Thread.join
    ended: WeakKeyDictionary[threading.Thread, Clock] = WeakKeyDictionary()

    def knowing(thread: threading.Thread) -> None:
        known, run = dict(clocks.host()), thread.run

        def looked_at() -> None:
            join(clocks.host(), known)
            try:
                with inside():
                    run()
            finally:
                ended[thread] = clocks.host()

        thread.run = looked_at  # type: ignore[method-assign]  # it is run once
        start(thread)

    def joined(thread: threading.Thread, timeout: float | None = None) -> None:
        finish(thread, timeout)
        if not thread.is_alive():
            join(clocks.host(), ended.get(thread, {}))

    with patch.object(threading.Thread, "start", knowing), patch.object(threading.Thread, "join", joined):
        yield
