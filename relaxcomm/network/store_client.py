"""A store that another process holds: what is none, or says nothing, keeps nobody waiting."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented, though not exported by name

from relaxcomm.errors import CommunicationError
from relaxcomm.system.tcp import before_port, connect_within
from relaxcomm.system.time_limit import within

_LEAST_SECONDS = 1.0  # for an answer of who listens late


def await_store(host: str, port: int, seconds: float, *, holder: str, remedy: str) -> TCPStore:
    """The store that another process holds there now, or will.

    Args:
        host, port: where it listens.
        seconds: the longest wait for it.
        holder: who should hold it, for errors.
        remedy: what to do, for errors.

    Raises: CommunicationError if nobody listens there in that time, or what does is none or silent.
    """
    deadline = time.monotonic() + seconds
    where = f"{before_port(host)}:{port}, where {holder} should hold the store"
    try:
        connect_within(host, port, seconds).close()
    except OSError as error:
        raise CommunicationError(f"nobody listens at {where} ({error.strerror or error}); {remedy}") from None
    store = store_at(host, port, max(_LEAST_SECONDS, deadline - time.monotonic()))
    if store is None:
        raise CommunicationError(f"what listens at {where}, is no store, or says nothing; {remedy}")
    return store


def store_at(host: str, port: int, seconds: float) -> TCPStore | None:
    """The store that is held there, or None if what listens there is none, or silent.

    torch's own client has no limit on silence; where it is answered wrongly it tries for twice its limit, and
    writes then of its source: it ends before this gives up.

    Args:
        host, port: where somebody listens.
        seconds: the longest wait for an answer.
    """
    limit = timedelta(seconds=seconds / 3)
    with no_frames(), suppress(RuntimeError, TimeoutError):
        return within(seconds, lambda: TCPStore(host, port, None, False, limit, wait_for_workers=False))
    return None


@contextmanager
def no_frames() -> Iterator[None]:
    """Keep what torch writes of its source, past Python, from the terminal."""
    try:
        before = os.dup(2)
    except OSError:  # this process has no terminal
        yield
        return
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nothing)
