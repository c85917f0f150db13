"""The HTTP server of one rank: `/metrics`, and on rank 0 `/sd` for Prometheus's service discovery."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import Any
from weakref import WeakSet
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

_SLOWEST_CLIENT_SECONDS = 10
_servers: WeakSet[_Server] = WeakSet()


@dataclass(frozen=True)
class Target:
    """Where a rank's metrics are.

    Args:
        rank: whose.
        host: name or address of its host; "" where a rank is on the host of the one that tells.
        port: of its exporter.
    """

    rank: int
    host: str
    port: int


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

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


class _Handler(WSGIRequestHandler):
    timeout = _SLOWEST_CLIENT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not worth a line."""


class Exporter:
    """Answers requests in threads of its own until it is closed.

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
        self.url = f"http://{f'[{address}]' if ':' in address else address}:{self.port}"
        thread = threading.Thread(
            target=self._server.serve_forever, daemon=True, name=f"relaxcomm-metrics-{self.port}"
        )
        thread.start()

    def close(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/sd" and self.targets:
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self._discovered(environ.get("HTTP_HOST", ""))).encode()]
        if environ["PATH_INFO"] == "/metrics":
            answer: Iterable[bytes] = self._metrics(environ, start)
            return answer
        start("404 Not Found", [("Content-Type", "text/plain")])
        return [b"Here are /metrics and, on rank 0, /sd.\n"]

    def _discovered(self, asked: str) -> list[dict[str, Any]]:
        """What Prometheus's HTTP service discovery wants; ranks of this host are where it was asked."""
        here = asked.rpartition(":")[0] or asked
        return [
            {
                "targets": [f"{target.host or here}:{target.port}"],
                "labels": {"rank": str(target.rank), "run": self._run},
            }
            for target in self.targets
        ]


def _forget() -> None:
    """A forked process, such as a DataLoader's worker, must not keep the ports."""
    for server in list(_servers):
        server.socket.close()


os.register_at_fork(after_in_child=_forget)
