"""TCP connections to another program, never to oneself."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from relaxcomm.errors import ConfigError

_TRY_SECONDS, _PAUSE_SECONDS = 5.0, 0.1


def before_port(host: str) -> str:
    """A host as it stands before `:PORT`: an IPv6 address in brackets.

    Example:
        >>> before_port("10.0.0.1"), before_port("::1")
        ('10.0.0.1', '[::1]')
    """
    return f"[{host}]" if ":" in host else host


def split_address(address: str) -> tuple[str, int]:
    """The host and the port of HOST:PORT.

    Raises: ConfigError.

    Example:
        >>> split_address("[::1]:29400")
        ('::1', 29400)
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not port.isascii() or not 0 < int(port) < 1 << 16:
        bare = address.partition("://")[2].rstrip("/")
        hint = f"; did you mean {bare[:100]!r}?" if bare else ", such as 127.0.0.1:29400"
        raise ConfigError(f"{address[:100]!r} is no HOST:PORT{hint}")
    return host.removeprefix("[").removesuffix("]"), int(port)


@contextmanager
def named_as_hosts_are() -> Iterator[None]:
    """Have a name that no host can have be an OSError, as one is that none has."""
    try:
        yield
    except UnicodeError as error:
        raise OSError(str(error)) from None


def connect(host: str, port: int, timeout_seconds: float) -> socket.socket:
    """A connection to a program that listens there.

    Where nobody listens on a port of this host that the kernel also gives to clients, it may give that very
    port to the caller, who then is connected to itself (a simultaneous open); this is refused.

    Raises: OSError if nobody listens there.
    """
    with named_as_hosts_are():
        connection = socket.create_connection((host, port), timeout=timeout_seconds)
    if connection.getsockname() == connection.getpeername():
        connection.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    return connection


def connect_within(host: str, port: int, seconds: float) -> socket.socket:
    """A connection to a program that listens there now, or will.

    Raises: OSError, of the last try, if nobody has listened there for so many seconds.
    """
    with named_as_hosts_are():
        host.encode("idna")  # as a connection does; else that would be tried until the time is over
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        try:
            return connect(host, port, max(_PAUSE_SECONDS, min(left, _TRY_SECONDS)))
        except OSError:
            if left <= _PAUSE_SECONDS:
                raise
        time.sleep(_PAUSE_SECONDS)
