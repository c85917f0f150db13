"""Which address a name has on this host, and which network interface has an address."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

_GLOO = "GLOO_SOCKET_IFNAME"


def resolved(host: str) -> str:
    """Its first address as this host has it; empty if it has none.

    Example:
        >>> resolved("127.0.0.1")
        '127.0.0.1'
    """
    with suppress(OSError, UnicodeError):
        return str(socket.getaddrinfo(host, None)[0][4][0])
    return ""


def interface_of(address: str) -> str | None:
    """The interface that has a numeric address, if one has.

    Example:
        >>> interface_of("127.0.0.1") is not None
        True
    """
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address for one in addresses):
            return name
    return None


def use_interface_of(address: str | None) -> None:
    """Let Gloo listen where the other workers reach this host, and nowhere else, unless it was told where.

    By itself it takes the address that the host's name has, which may be one that others cannot reach.
    """
    if address is not None and (name := interface_of(address)) is not None:
        os.environ.setdefault(_GLOO, name)
