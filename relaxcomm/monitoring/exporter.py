"""The HTTP server of one rank: `/metrics`, and on rank 0 `/sd` for Prometheus's service discovery."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import Any, BinaryIO
from weakref import WeakMethod, WeakSet
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from relaxcomm.system.tcp import before_port

_SLOWEST_CLIENT_SECONDS = 10.0
_MOST_CLIENTS = 32
_LONGEST_HEAD_BYTES = 16_384
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]+)?")
_servers: WeakSet[_Server] = WeakSet()


@dataclass(frozen=True)
class Target:
    """Where a rank's metrics are.

    Args:
        rank: whose.
        host: name or address of its host; "" where a rank is on the host of the one that tells.
        port: of its exporter.
        network: what tells hosts apart, and containers on one of them that have ports of their own.
    """

    rank: int
    host: str
    port: int
    network: str = ""


class _DroppedError(Exception):
    """Nobody keeps who answers."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 2 * _MOST_CLIENTS  # the usual 5 make a sixth wait for seconds

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._since: dict[socket.socket, float] = {}
        super().__init__(*args, **kwargs)

    def set_app(self, application: Any) -> None:
        """Answer by a bound method while somebody else keeps its object, which a thread must not."""
        self._application = WeakMethod(application)

    def get_app(self) -> Any:
        return self._application() or _answer_no_more

    def serve(self) -> None:
        """Answer until `shutdown`, or until nobody keeps who answers."""
        with suppress(_DroppedError):
            self.serve_forever()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, but not in more of them than somebody who means well needs."""
        if len(self._since) >= _MOST_CLIENTS:
            self.shutdown_request(request)
            return
        self._since[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._since.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Now and then: hang up on who has taken too long, however busy with it."""
        if self._application() is None:
            raise _DroppedError
        latest = time.monotonic() - _SLOWEST_CLIENT_SECONDS
        for request, since in list(self._since.items()):
            if since < latest:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def server_bind(self) -> None:
        # The one of HTTPServer asks a name server for this host's name, which may take seconds.
        self.server_name = str(self.server_address[0])
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_port = self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no news for the training's log."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Head:
    """The lines of a request up to a number of bytes, behind which there is nothing."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._left = file, _LONGEST_HEAD_BYTES

    def readline(self, limit: int) -> bytes:
        line = self._file.readline(min(limit, self._left))
        self._left -= len(line)
        return line

    def close(self) -> None:
        self._file.close()


class _Handler(WSGIRequestHandler):
    timeout = 2 * _SLOWEST_CLIENT_SECONDS  # of one read or write; the server hangs up before

    def setup(self) -> None:
        super().setup()
        self.rfile: Any = _Head(self.rfile)

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not worth a line."""


class Exporter:
    """Answers requests in threads of its own until it is closed, or nobody keeps it.

    Args:
        address: to bind to.
        port: to listen on; 0 lets the system choose.
        registry: what `/metrics` shows.
        run: name of the run, which service discovery gives as a label.

    Raises: OSError if the port cannot be had.
    """

    def __init__(self, address: str, port: int, registry: CollectorRegistry, run: str) -> None:
        self._run = run
        self.targets: Sequence[Target] = ()
        self._metrics = make_wsgi_app(registry)
        self._server = make_server(address, port, self._answer, _Server, _Handler)
        _servers.add(self._server)
        self.port = self._server.server_port
        self.url = f"http://{before_port(address)}:{self.port}"
        self._thread = threading.Thread(
            target=self._server.serve, daemon=True, name=f"relaxcomm-metrics-{self.port}"
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._thread.join()  # which frees the port

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start("405 Method Not Allowed", [("Content-Type", "text/plain"), ("Allow", "GET, HEAD")])
            return [b"What is here can only be read.\n"]
        if environ["PATH_INFO"] == "/sd" and self.targets:
            asked = _HOST.fullmatch(environ.get("HTTP_HOST", ""))
            if asked is None:
                start("400 Bad Request", [("Content-Type", "text/plain")])
                return [b"The header Host must name this host.\n"]
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self._discovered(asked[1])).encode()]
        if environ["PATH_INFO"] == "/metrics":
            answer: Iterable[bytes] = self._metrics(environ, start)
            return answer
        start("404 Not Found", [("Content-Type", "text/plain")])
        return [b"Here are /metrics and, on the first worker of the run, /sd.\n"]

    def _discovered(self, here: str) -> list[dict[str, Any]]:
        """What Prometheus's HTTP service discovery wants; ranks of this host are where it was asked."""
        return [
            {
                "targets": [f"{target.host or here}:{target.port}"],
                "labels": {"rank": str(target.rank), "run": self._run},
            }
            for target in self.targets
        ]


def _answer_no_more(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    start("503 Service Unavailable", [("Content-Type", "text/plain")])
    return [b"The run has ended.\n"]


def _forget() -> None:
    """A forked process, such as a DataLoader's worker, must not keep the ports."""
    for server in list(_servers):
        server.socket.close()


os.register_at_fork(after_in_child=_forget)
