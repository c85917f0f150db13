"""Whether the process of another rank still runs: asked of the system, on this host or on its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from relaxcomm.network import lifelines
from relaxcomm.system.this_host import this_host

_AT_ONCE = 32


def this_process(*, is_watched: bool = True) -> str:
    """Where this process is found.

    Args:
        is_watched: whether processes on other hosts learn when it ends.
    """
    return f"{os.getpid()} {this_host('pid')} {lifelines.listen() if is_watched else ''}".rstrip()


ENDED, SILENTLY = "has ended", " without a message"


def watch(process: str) -> None:
    """Learn from now on when a process on another host ends; it is there now."""
    _, host, lifeline = _parts(process)
    if host != this_host("pid"):
        lifelines.watch(lifeline)


def reached(processes: Sequence[str]) -> int:
    """How many of these can be connected to now; those of which nobody can say count, too."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return sum(pool.map(lifelines.answers, [_parts(one)[2] for one in processes]))


def condition_of(process: str) -> str:
    """Says that the process of a rank has ended, or, on this host, is stopped; empty while it runs."""
    import psutil

    number, host, lifeline = _parts(process)
    if host != this_host("pid"):
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
