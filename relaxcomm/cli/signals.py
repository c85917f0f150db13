"""Sees that no worker outlives its launcher, and that Ctrl-C is told of once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import NoReturn

import psutil
from torch.distributed.elastic.multiprocessing import SignalException

from relaxcomm.cli import fork_server
from relaxcomm.system.telling import tell

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_SIGNALS = (signal.SIGINT, *_ENDING)
_SILENT_SECONDS = 2.0  # until it is said what is waited for
_PATIENCE = "interrupted; workers that ignore SIGTERM have 30 s to end, and another Ctrl-C ends them at once"


@contextmanager
def signals() -> Iterator[None]:
    """Let signals end what is under way, also before torch's launcher hears them, and put back what was."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    patience = threading.Timer(_SILENT_SECONDS, partial(tell, _PATIENCE))
    patience.daemon = True

    def interrupt(number: int, frame: object) -> NoReturn:
        with suppress(RuntimeError):  # of a second one
            patience.start()
        raise KeyboardInterrupt

    try:  # from now on one may come
        for number in ending():
            signal.signal(number, raise_signal)
        if before[signal.SIGINT] is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupt)
        yield
    finally:
        patience.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def ending() -> list[signal.Signals]:
    """The signals that end a run, beside Ctrl-C; not those that nohup, or who started this, has it ignore."""
    return [one for one in _ENDING if signal.getsignal(one) is not signal.SIG_IGN]


def raise_signal(number: int, frame: object) -> NoReturn:
    """A handler that ends what is under way.

    Raises: SignalException.
    """
    raise SignalException("ended", signal.Signals(number))


def end_at_interrupt() -> None:
    """In a worker: end without a word, also at a Ctrl-C that came while it started; it reaches all."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def await_interrupt() -> NoReturn:
    """End as at a Ctrl-C that has ended a worker, and which on a busy machine reaches this process later.

    Raises: KeyboardInterrupt.
    """
    for _ in range(100):
        time.sleep(0.05)
    raise KeyboardInterrupt


@contextmanager
def no_worker_left() -> Iterator[None]:
    """End what was started and not ended, such as workers that an interrupt found half begun."""
    before = _workers()
    try:
        yield
    except (KeyboardInterrupt, SignalException) as error:
        error.add_note("all workers are ended")
        raise
    finally:
        left = _workers() - before
        for one in left:  # all before the first has ended, or others would say that they have lost it
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(left)


def _workers() -> set[psutil.Process]:
    """What is forked off the server, also if an interrupt came before `multiprocessing` knew of it."""
    server = fork_server.server()
    with suppress(psutil.NoSuchProcess):
        return set(server.children() if server is not None else ())
    return set()
