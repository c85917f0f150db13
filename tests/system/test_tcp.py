"""Connections reach another program or nobody."""

import socket

import pytest

from relaxcomm.system.tcp import connect
from tests.ranks import free_port


def test_who_listens_is_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = connect("127.0.0.1", server.getsockname()[1], 5)
        with connection, server.accept()[0] as other:
            assert connection.getsockname() == other.getpeername()


def test_nobody_is_not_oneself(monkeypatch):
    port, original, made = free_port(), socket.create_connection, []

    def with_that_port(address, timeout):
        made.append(original(address, timeout, source_address=("127.0.0.1", port)))
        return made[-1]

    monkeypatch.setattr(socket, "create_connection", with_that_port)
    with pytest.raises(ConnectionRefusedError, match="Connection refused"):
        connect("127.0.0.1", port, 5)
    (connection,) = made
    assert connection.fileno() == -1, "it was connected to itself, and is closed"
