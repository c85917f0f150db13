"""Whether the process of another rank still runs: asked of the system, on this host."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil


def this_process() -> str:
    """Where this process is found."""
    return f"{os.getpid()} {_host()}"


ENDED = "has ended without a message"


def condition_of(process: str) -> str:
    """That the process of a rank has ended, or is stopped; nothing while it runs, or on another host."""
    number, _, host = process.partition(" ")
    if host != _host():
        return ""
    try:
        status = psutil.Process(int(number)).status()
    except psutil.NoSuchProcess:
        status = psutil.STATUS_ZOMBIE
    if status == psutil.STATUS_STOPPED:
        return f"is stopped (process {number})"
    ended = status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return f"{ENDED} (process {number})" if ended else ""


def _host() -> str:
    """This machine, since it was started, and the container whose process numbers these are."""
    parts = [socket.gethostname()]
    for place in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        try:
            parts.append(os.readlink(place) if "/ns/" in place else Path(place).read_text().strip())
        except OSError:
            parts.append("")
    return "/".join(parts)
