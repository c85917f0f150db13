"""Workers are forked off a process that has imported what they need: they begin in a fraction of the time."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, get_context, resource_tracker
from multiprocessing.connection import Connection
from typing import Literal

import psutil

from relaxcomm.cli.exit_codes import warn

START_METHOD: Literal["forkserver"] = "forkserver"
_IMPORTS = "relaxcomm.cli.worker_imports"
_CLOSED = (signal.SIGHUP, signal.SIGQUIT)


@contextmanager
def begun() -> Iterator[Mapping[str, str | None]]:
    """Start the server, unless it runs, and wait until it has imported all.

    An interrupt then finds workers begun or not begun, not asked for and about to be forked.

    Yields: the variables that are not those with which it began, None for those that are gone: what is
        forked off it has its environment.
    """
    is_new = server() is None
    try:
        changed = _begin()
    except BaseException:
        if is_new and (found := server()) is not None:
            found.kill()  # it would go on importing
        raise
    try:
        yield changed
    except BaseException:
        if server() is not None:  # a signal to the whole process group ends it: no other is started for this
            with suppress(EOFError, OSError):  # an interrupt in the middle of a question ends it, too
                _begin()  # it answers in turn: what was asked for is there
        raise


def server() -> psutil.Process | None:
    """The process that workers are forked off, if it runs."""
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]  # no public accessor
    with suppress(psutil.NoSuchProcess):
        if pid is not None and (found := psutil.Process(pid)).status() != psutil.STATUS_ZOMBIE:
            return found
    return None


def _begin() -> Mapping[str, str | None]:
    """Start the server, in which SIGINT is blocked: its workers inherit that until `end_at_interrupt`."""
    context = get_context(START_METHOD)
    context.set_forkserver_preload([_IMPORTS])
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _CLOSED)  # what cleans up outlives a closed terminal
    try:
        resource_tracker.ensure_running()  # its start would unblock SIGINT
        signal.pthread_sigmask(signal.SIG_SETMASK, {*mask, signal.SIGINT})
        forkserver.ensure_running()  # in this thread: the server ends with it
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    told, tell = context.Pipe(duplex=False)
    first = context.Process(target=_tell_environment, args=(tell,))
    first.start()
    tell.close()
    theirs: dict[str, str] = told.recv()
    first.join()
    mine = dict(os.environ)
    return {name: mine.get(name) for name in theirs | mine if theirs.get(name) != mine.get(name)}


def _tell_environment(tell: Connection) -> None:
    with suppress(BrokenPipeError):  # nobody listens: an interrupt came
        tell.send(dict(os.environ))


def enter(launcher: int, changed: Mapping[str, str | None]) -> None:
    """In a worker: take over the environment and how warnings look; end if the launcher has been killed.

    Args:
        launcher: its process.
        changed: by `begun`.
    """
    try:
        server = psutil.Process(os.getppid())
        is_bound = server.ppid() == launcher
    except psutil.NoSuchProcess:
        is_bound = False
    if not is_bound:  # killed before PyTorch bound this process's life to the server's
        raise SystemExit(1)
    for name, value in changed.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    warnings.showwarning = warn
