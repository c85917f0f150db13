"""A store that listens at one address: torch's own listens on all of the machine."""

from __future__ import annotations

import os
import socket

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented, though not exported by name


def serve_store(host: str, port: int = 0) -> TCPStore:
    """A store held by this process, with which others that it makes for the same port share the server.

    Args:
        host: name or address of this machine, at which it listens and nowhere else.
        port: 0 for a free one.

    Raises: OSError if it cannot listen there.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.create_server(found[4][:2], family=found[0]) as listening:
        taken, descriptor = listening.getsockname()[1], os.dup(listening.fileno())
    return TCPStore(
        host,
        taken,
        None,
        is_master=True,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=descriptor,
    )
