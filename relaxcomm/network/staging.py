"""Requests from a GPU on their way to services, which know the CPU alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

from torch import Tensor

from relaxcomm.network.endings import ended_at_exit
from relaxcomm.network.operations import Request
from relaxcomm.network.streams import Streams

_FIRST_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 0.0001, 0.002
_END_SECONDS = 1.0


def is_staged(operation: Request) -> bool:
    """Whether a request's rows have to come to the host first."""
    return operation.tensor.device.type != "cpu"


class StagedWork:
    """A request whose rows are copied to the host first, as a work.

    Args:
        copied: looks whether the rows are there.
        send: sends them, and returns a work.
    """

    def __init__(self, copied: Callable[[], bool], send: Callable[[], Any]) -> None:
        self.copied, self._send = copied, send
        self._sent: Future[Any] = Future()

    def send(self) -> None:
        """The rows are there."""
        try:
            self._sent.set_result(self._send())
        except Exception as error:  # handed to who waits
            self._sent.set_exception(error)
        finally:
            del self._send  # which holds the rows

    def wait(self, timeout: timedelta) -> None:
        """Wait at most `timeout` for the answers.

        Raises: RuntimeError if that was not enough; what went wrong while the request was sent.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        if wait([self._sent], timeout.total_seconds()).not_done:
            raise RuntimeError(f"not sent within {timeout.total_seconds():g} s")
        self._sent.result().wait(timedelta(seconds=max(0.001, deadline - time.monotonic())))

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        sent = self._sent
        return sent.done() and (sent.exception() is not None or bool(sent.result().is_completed()))


class Staging:
    """Sends requests when their rows have come to the host: in order, and no stream or rank waits for it.

    Args:
        streams: of the device.
        check: raises CommunicationError when what the device makes means nothing any more.
    """

    def __init__(self, streams: Streams, check: Callable[[], None]) -> None:
        self._streams, self._check = streams, check
        self._staged: SimpleQueue[StagedWork | None] = SimpleQueue()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="relaxcomm-staging")
        _staging.add(self)
        self._thread.start()

    def ask(self, operation: Request, ask: Callable[[Request], Any]) -> tuple[StagedWork, Tensor]:
        """Begin a request; a work, and where the answers will be, on the host.

        Args:
            operation: with its rows on the device.
            ask: sends the same from the host, and returns a work.
        """
        rows, copied = self._streams.to_host(operation.tensor)
        reply = self._streams.host_memory(operation.reply)
        on_host = Request(rows, reply, operation.ranks)

        def send() -> Any:
            self._check()
            return ask(on_host)

        work = StagedWork(copied, send)
        self._staged.put(work)
        return work, reply

    def end(self) -> None:
        """Send nothing more."""
        self._ending.set()
        self._staged.put(None)
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        while (work := self._staged.get()) is not None:
            pause = _FIRST_LOOK_SECONDS
            # Not a wait for the event, from which nothing would wake the thread when the process ends.
            while not work.copied():
                if self._ending.wait(pause):
                    return
                pause = min(2 * pause, _LONGEST_LOOK_SECONDS)
            work.send()


_staging = ended_at_exit(Staging.end)
