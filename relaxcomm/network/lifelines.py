"""Whether a process on another host has ended, learned from its system: it resets what was connected to it.

Each process listens where Gloo does and accepts nobody. A connection to it stands as long as the process is
there, also when that is stopped or its host cannot be reached, and is reset at once when it ends.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from relaxcomm.network.endings import at_exit
from relaxcomm.system.tcp import connect

_CONNECT_SECONDS = 2.0
_MOST_WATCHING = 4096
_listening: list[socket.socket] = []
_watched: dict[str, socket.socket | None] = {}  # None: has ended


def listen() -> str:
    """Where others can watch this process, "ADDRESS PORT"; nothing where they cannot."""
    with suppress(OSError):
        if not _listening:
            at_exit(_close_all)
            address = _address()
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            _listening.append(socket.create_server((address, 0), family=family, backlog=_MOST_WATCHING))
        address, port = _listening[0].getsockname()[:2]
        return f"{address} {port}"
    return ""


def watch(address: str) -> None:
    """Begin to watch a process, which is there now; one that cannot be reached is never taken for ended.

    Args:
        address: what `listen` has returned there.
    """
    if address in _watched or not address:
        return
    host, port = address.split(" ")
    with suppress(OSError):
        at_exit(_close_all)
        connection = connect(host, int(port), _CONNECT_SECONDS)
        connection.setblocking(False)
        # Else a firewall would forget it.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        _watched[address] = connection


def answers(address: str) -> bool:
    """Whether a process can be reached now; also where it cannot be watched, since nobody can say."""
    if not address:
        return True
    host, port = address.split(" ")
    try:
        connect(host, int(port), _CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def has_ended(address: str) -> bool:
    """Whether a process that was watched has ended."""
    if address not in _watched:
        return False
    connection = _watched[address]
    if connection is None:
        return True
    try:
        connection.recv(1)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    except OSError:  # nothing comes from there any more, which may be the network
        del _watched[address]
        connection.close()
        return False
    _watched[address] = None
    connection.close()
    return True


def _address() -> str:
    """Where Gloo listens: on the first interface that is named, or where the host's name leads."""
    import psutil

    named = psutil.net_if_addrs().get(os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0], ())
    for family in (socket.AF_INET, socket.AF_INET6):
        for one in named:
            if one.family == family and "%" not in one.address:  # a link's own, which others write otherwise
                return one.address
    return socket.gethostbyname(socket.gethostname())


def _close_all() -> None:
    for one in (*_listening, *_watched.values()):
        if one is not None:
            one.close()
    _listening.clear()
    _watched.clear()


# A loader's process that lives a little longer would keep this one's connections alive.
os.register_at_fork(after_in_child=_close_all)
