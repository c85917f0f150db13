"""Whether the process of another rank still runs: asked of the system, on this host or on its own."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from relaxcomm.network import lifelines


def this_process(*, is_watched: bool = True) -> str:
    """Where this process is found.

    Args:
        is_watched: whether processes on other hosts learn when it ends.
    """
    return f"{os.getpid()} {_host()} {lifelines.listen() if is_watched else ''}".rstrip()


ENDED, SILENTLY = "has ended", " without a message"


def watch(process: str) -> None:
    """Learn from now on when a process on another host ends; it is there now."""
    _, host, lifeline = _parts(process)
    if host != _host():
        lifelines.watch(lifeline)


def condition_of(process: str) -> str:
    """Says that the process of a rank has ended, or, on this host, is stopped; empty while it runs."""
    import psutil

    number, host, lifeline = _parts(process)
    if host != _host():
        return f"{ENDED}{SILENTLY} (process {number})" if lifelines.has_ended(lifeline) else ""
    try:
        status = psutil.Process(int(number)).status()
    except psutil.NoSuchProcess:
        status = psutil.STATUS_ZOMBIE
    if status == psutil.STATUS_STOPPED:
        return f"is stopped (process {number})"
    ended = status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return f"{ENDED}{SILENTLY} (process {number})" if ended else ""


def _parts(process: str) -> tuple[str, str, str]:
    """Its number, its host, and where it can be watched."""
    number, _, rest = process.partition(" ")
    host, _, lifeline = rest.partition(" ")
    return number, host, lifeline


def _host() -> str:
    """This machine, since it was started, and the container whose process numbers these are."""
    parts = [socket.gethostname()]
    for place in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        try:
            parts.append(os.readlink(place) if "/ns/" in place else Path(place).read_text().strip())
        except OSError:
            parts.append("")
    return "/".join(parts)
