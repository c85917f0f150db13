"""Looks after operations that the host does not wait for, and ends them when they will never end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from relaxcomm.errors import CommunicationError
from relaxcomm.network.communicators import Communicators
from relaxcomm.network.endings import ended_at_exit
from relaxcomm.network.liveness import Missing
from relaxcomm.network.operations import Label
from relaxcomm.network.waiting import Waiting

_LOOK_SECONDS = 0.5
_END_SECONDS = 5.0


@dataclass(eq=False)
class Outstanding:
    """An operation that has not ended.

    Args:
        label: of the operation.
        index: its number among what was issued.
        has_ended: looks.
    """

    label: Label
    index: int
    has_ended: Callable[[], bool]
    since: float = field(default_factory=time.monotonic)


class Monitor:
    """On a GPU a wait only orders the stream, and the host goes on; so a thread watches in its place.

    When a rank is gone, or an operation takes too long, it aborts all communicators together, which is what
    streams, and hosts that synchronise with them, can be freed by. What operations have brought then means
    nothing, so every later call is an error.

    Args:
        waiting: knows what became of others, and what this rank says of itself.
        communicators: on which the operations are; None where the host waits for all of them.
    """

    def __init__(self, waiting: Waiting, communicators: Communicators | None) -> None:
        self._waiting, self._communicators = waiting, communicators
        self._outstanding: list[Outstanding] = []
        self._latest: Label | None = None
        self._lock = threading.Lock()
        self._error: CommunicationError | None = None
        self._is_told = False
        self._ending, self._has_looked = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, one: Outstanding) -> None:
        """Watch an operation that was just issued."""
        with self._lock:
            self._outstanding.append(one)
            self._latest = one.label
        if self._thread is None and not self._ending.is_set():
            _watching.add(self)
            self._thread = threading.Thread(target=self._run, daemon=True, name="relaxcomm-monitor")
            self._thread.start()

    def check(self) -> None:
        """Raise what has become of the operations of this rank, if they have failed."""
        if self._error is not None:
            self._is_told = True
            raise type(self._error)(*self._error.args)

    def check_told(self) -> None:
        """Raise it, if nobody was told."""
        if not self._is_told:
            self.check()

    def settle(self) -> None:
        """This rank ends with an error of its own."""
        self._is_told = True

    def end(self) -> None:
        """Watch no more; an abort may take long, and is waited for elsewhere."""
        self._ending.set()
        if self._thread is not None and self._thread.is_alive():
            self._has_looked.wait(_END_SECONDS)
        self._outstanding.clear()

    def _run(self) -> None:
        assert self._communicators is not None, "without one nothing is watched"
        is_broken = self._look_again(self._communicators)
        self._has_looked.set()
        if is_broken:
            self._communicators.abort()

    def _look_again(self, communicators: Communicators) -> bool:
        """Look until this is ended, or something has gone wrong, and whether it has."""
        noticed = Missing()
        while not self._ending.wait(_LOOK_SECONDS):
            if self._waiting.has_failed:  # where the host has waited: nothing here ends either
                self._error, self._is_told = self._waiting.error, True
                return True
            try:
                noticed = self._look(communicators, noticed)
            except CommunicationError as error:
                self._error = error  # before an abort, which frees whoever asks for it
                return True
            except Exception as error:  # of CUDA, say; without this thread nothing would be bounded
                self._error = self._waiting.broke("a look at what the GPU does", RuntimeError(repr(error)))
                return True
        return False

    def _look(self, communicators: Communicators, noticed: Missing) -> Missing:
        """Who will never come; an error if that was seen before, or an operation has failed or is late."""
        waiting, oldest = self._waiting, self._oldest()
        if wrong := communicators.error():  # such an operation has ended, too
            at = self._latest if oldest is None else oldest.label
            raise waiting.broke(at, RuntimeError(wrong))
        if oldest is None:
            return Missing()
        label = oldest.label
        age = time.monotonic() - oldest.since
        if age > waiting.seconds:
            raise waiting.late(label, waiting.waits(label, oldest.index))
        if age < _LOOK_SECONDS:
            return Missing()
        missing = waiting.missing(label, oldest.index)
        if missing and missing == noticed:  # seen twice: what others sent before they ended has come
            raise waiting.failure(label, missing)
        return missing

    def _oldest(self) -> Outstanding | None:
        """The first operation that has not ended."""
        with self._lock:
            known = list(self._outstanding)
        running = [one for one in known if not one.has_ended()]
        with self._lock:
            self._outstanding = running + self._outstanding[len(known) :]
        return running[0] if running else None


_watching = ended_at_exit(Monitor.end)
