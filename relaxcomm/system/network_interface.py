"""Which addresses a name has on this host, which one others see, and which network interface has it."""

from __future__ import annotations

import ipaddress
import os
import socket
from contextlib import suppress

_GLOO = "GLOO_SOCKET_IFNAME"


def resolve(host: str) -> list[str]:
    """The addresses of a name as this host has them; none if there are none.

    Example:
        >>> resolve("127.0.0.1")
        ['127.0.0.1']
    """
    with suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(host, None, 0, socket.SOCK_STREAM)
        return list(dict.fromkeys(str(one[4][0]).partition("%")[0] for one in found))
    return []


def first_address(host: str) -> str:
    """The first of them; empty if there is none."""
    return next(iter(resolve(host)), "")


def is_only_here(host: str) -> bool:
    """Whether a name that others know otherwise is a loopback on this host: /etc/hosts often has 127.0.1.1.

    Example:
        >>> is_only_here("localhost"), is_only_here("127.0.0.1")
        (False, False)
    """
    address = first_address(host)
    return address not in ("", host) and "localhost" not in host and ipaddress.ip_address(address).is_loopback


def address_towards(host: str) -> str | None:
    """This host's address as another one sees it; nothing is sent. None where there is no way to it.

    Example:
        >>> address_towards("127.0.0.1")
        '127.0.0.1'
    """
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(found[0], socket.SOCK_DGRAM) as probe:
            probe.connect(found[4])
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError):
        return None


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
