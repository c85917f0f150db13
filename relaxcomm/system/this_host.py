"""What tells this machine, and a container on it, from others."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Literal


def this_host(namespace: Literal["net", "pid"]) -> str:
    """This machine, since it was started, and the container whose ports or process numbers these are.

    Example:
        >>> this_host("net") == this_host("net")
        True
    """
    parts = [socket.gethostname()]
    for place in ("/proc/sys/kernel/random/boot_id", f"/proc/self/ns/{namespace}"):
        try:
            parts.append(os.readlink(place) if "/ns/" in place else Path(place).read_text().strip())
        except OSError:
            parts.append("")
    return "/".join(parts)
