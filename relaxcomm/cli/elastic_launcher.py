"""Local workers that may end one by one: the others go on."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Generic, TypeVar

from rich.console import Console
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented
from torch.multiprocessing.spawn import spawn

from relaxcomm.cli import signals
from relaxcomm.cli.launcher import LOOPBACK, prepare
from relaxcomm.cli.worker_reports import first_failure, in_words, report_of, reporting
from relaxcomm.network.store_server import serve_store
from relaxcomm.system.files import write_whole

T = TypeVar("T")

_LOOK_SECONDS = 0.2  # between two looks at what was interrupted


def launch_elastic(work: Callable[[], T], workers: int) -> T:
    """Run `work` on local worker processes that find each other in a store which this process holds.

    It goes on as long as a worker lives.

    Args:
        work: picklable, since each worker is a fresh process.
        workers: how many processes.

    Returns: what the first worker that came to the end has returned.

    Raises: ConfigError for more workers than memory holds; RunFailed with the message of the worker that
        failed first, if none came to the end.
    """
    prepare(workers)
    with TemporaryDirectory(prefix="relaxcomm-") as folder, signals.signals(), signals.no_child_left():
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signals.raise_signal)
        return _Launcher(work, workers, serve_store(LOOPBACK), Path(folder)).run()


class _Launcher(Generic[T]):
    """Starts workers and watches them.

    Args:
        work: of each.
        size: how many.
        store: in which they find each other.
        folder: in which they leave results and reports.
    """

    def __init__(self, work: Callable[[], T], size: int, store: TCPStore, folder: Path) -> None:
        self._work, self._size, self._store, self._folder = work, size, store, folder
        self._failed: dict[int, int] = {}  # exit codes, by rank
        self._console = Console(stderr=True)
        self._done: Path | None = None  # the result of the first that came to the end

    def run(self) -> T:
        """Watch until nobody is left.

        Raises: RunFailed if none came to the end.
        """
        living = {rank: self._start(rank) for rank in range(self._size)}
        while living:
            wait([process.sentinel for process in living.values()], _LOOK_SECONDS)
            for rank in [rank for rank, process in living.items() if process.exitcode is not None]:
                self._ended(rank, living.pop(rank))
        if self._done is None:
            raise first_failure(self._folder, self._failed, self._size)
        result: T = pickle.loads(self._done.read_bytes())  # a worker of this process wrote it
        return result

    def _start(self, rank: int) -> BaseProcess:
        own = _environment(rank, self._size, self._store)
        begin = (self._work, str(self._folder), rank, own, os.getpid())
        # PyTorch binds the process's life to this one's.
        context = spawn(_run, begin, nprocs=1, join=False)  # type: ignore[no-untyped-call]
        process: BaseProcess = context.processes[0]
        return process

    def _ended(self, rank: int, process: BaseProcess) -> None:
        """Take note of how a process ended."""
        exit_code = process.exitcode
        assert exit_code is not None, "it has ended"
        if exit_code == 0:
            self._done = self._done or _result(self._folder, rank)
            return
        if exit_code == -signal.SIGINT:
            signals.await_interrupt()
        self._failed[rank] = exit_code
        report = report_of(self._folder, rank)
        self._say(f"process {process.pid} ended: {in_words(exit_code) if report is None else report}")

    def _say(self, words: str) -> None:
        """One line, in the place of a bar that a worker shows, or has left without a cursor."""
        if self._console.is_terminal:
            self._console.file.write("\r\x1b[2K")
            self._console.show_cursor()
        print(f"relaxcomm: {words}", file=sys.stderr, flush=True)


def _environment(rank: int, size: int, store: TCPStore) -> dict[str, str]:
    """What a worker must know, as torchrun says it."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": store.host,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # no rank holds the store
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def _run(
    index: int, work: Callable[[], T], folder: str, rank: int, own: Mapping[str, str], launcher: int
) -> None:
    """What each worker process does."""
    signals.end_at_interrupt()
    if os.getppid() != launcher:  # it was killed before PyTorch bound this process's life to it
        raise SystemExit(1)
    os.environ.update(own)
    with reporting(Path(folder), rank):
        write_whole(_result(Path(folder), rank), pickle.dumps(work()))


def _result(folder: Path, rank: int) -> Path:
    return folder / f"result-{rank}"
