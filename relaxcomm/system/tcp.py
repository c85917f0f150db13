"""TCP connections to another program, never to oneself."""

from __future__ import annotations

import errno
import os
import socket


def connect(host: str, port: int, timeout_seconds: float) -> socket.socket:
    """A connection to a program that listens there.

    Where nobody listens on a port of this host that the kernel also gives to clients, it may give that very
    port to the caller, who then is connected to itself (a simultaneous open); this is refused.

    Raises: OSError if nobody listens there.
    """
    connection = socket.create_connection((host, port), timeout=timeout_seconds)
    if connection.getsockname() == connection.getpeername():
        connection.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    return connection
