"""Which network interface of this host has an address."""

from __future__ import annotations

import os

_GLOO = "GLOO_SOCKET_IFNAME"


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


def use_interface_of(address: str) -> None:
    """Let Gloo listen where the other workers reach this host, and nowhere else, unless it was told where.

    By itself it takes the address that the host's name has, which may be one that others cannot reach.
    """
    if (name := interface_of(address)) is not None:
        os.environ.setdefault(_GLOO, name)
