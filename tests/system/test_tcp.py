"""Connections reach another program or nobody."""

import socket
import threading
import time

import pytest

from benchmarks.ports import free_port
from relaxcomm.system.tcp import connect, connect_within


def test_who_listens_is_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = connect("127.0.0.1", server.getsockname()[1], 5)
        with connection, server.accept()[0] as other:
            assert connection.getsockname() == other.getpeername()


def test_nobody_is_not_oneself(monkeypatch):
    port, made = free_port(), []

    def with_that_port(address, timeout):
        made.append(socket.socket())
        made[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # somebody may have used it just now
        made[-1].bind(("127.0.0.1", port))
        made[-1].connect(address)
        return made[-1]

    monkeypatch.setattr(socket, "create_connection", with_that_port)
    with pytest.raises(ConnectionRefusedError, match="Connection refused"):
        connect("127.0.0.1", port, 5)
    (connection,) = made
    assert connection.fileno() == -1, "it was connected to itself, and is closed"


def test_who_will_listen_is_waited_for():
    port, servers = free_port(), []
    later = threading.Timer(0.4, lambda: servers.append(socket.create_server(("127.0.0.1", port))))
    later.start()
    connect_within("127.0.0.1", port, 20).close()
    later.join()
    servers[0].close()
    begin = time.monotonic()
    with pytest.raises(ConnectionRefusedError):
        connect_within("127.0.0.1", port, 0.5)
    assert 0.3 < time.monotonic() - begin < 5
    with pytest.raises(OSError, match="label"):
        connect_within("a" * 64 + ".invalid", port, 0.5)
