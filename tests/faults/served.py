"""Both sides of a job's metrics, for requests and answers that are wrong."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from prometheus_client import CollectorRegistry, Gauge

from relaxcomm.monitoring.exporter import Exporter, Target


@contextmanager
def exporter() -> Iterator[Exporter]:
    """An exporter that shows one number."""
    registry = CollectorRegistry()
    Gauge("relaxcomm_loss", "Of the latest step.", registry=registry).set(0.5)
    made = Exporter("127.0.0.1", 0, registry, "mine")
    made.targets = [Target(0, "", made.port)]
    try:
        yield made
    finally:
        made.close()


def ask(port: int, request: bytes, *, ends: bool = True) -> bytes:
    """All that a server says to a request, until it hangs up."""
    said = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection, suppress(ConnectionError):
        connection.sendall(request)
        if ends:
            with suppress(OSError):  # it may have hung up
                connection.shutdown(socket.SHUT_WR)
        while more := connection.recv(65_536):
            said += more
    return said


class Liar:
    """A server that says whatever it is told to, until it is closed, and keeps what it is asked."""

    def __init__(self) -> None:
        self.answer = self.asked = b""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection, suppress(OSError):
                    self.asked += connection.recv(65_536)
                    connection.sendall(self.answer)

    def close(self) -> None:
        """Answer no more."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
