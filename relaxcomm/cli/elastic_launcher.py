"""Local workers that may end one by one: the others go on, and a newcomer takes the place of each."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Generic, TypeVar

from rich.console import Console
from torch.multiprocessing.spawn import start_processes

from relaxcomm.cli import fork_server, invitation, signals
from relaxcomm.cli.launcher import LOOPBACK, prepare
from relaxcomm.cli.worker_reports import first_failure, in_words, report_of, reporting
from relaxcomm.system.environment import JOIN, RANK_VARIABLES
from relaxcomm.system.files import write_whole
from relaxcomm.system.telling import tell

T = TypeVar("T")

RESTARTS = 3
"""How often a worker begins again, unless it was told otherwise."""
_LOOK_SECONDS = 0.2  # between two looks at what was interrupted
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0  # before a restart: doubled where a process did not last
_LONG_LIFE_SECONDS = 60.0


def launch_elastic(
    work: Callable[[], T],
    workers: int,
    *,
    configuration: Mapping[str, object],
    restarts: int = RESTARTS,
    address: str = LOOPBACK,
) -> T:
    """Run `work` on local worker processes that find each other in a store which this process holds.

    It goes on as long as a worker lives. A worker that ends badly begins again, as a newcomer that the others
    admit, until one has come to the end of the run.

    Args:
        work: picklable, since each worker is a process of its own.
        workers: how many processes.
        configuration: of the run, for those that join it.
        restarts: of each worker, at most.
        address: of this host, with or without a port, where newcomers join.

    Returns: what the first worker that came to the end has returned.

    Raises: ConfigError for more workers than memory holds, or an address that is not this host's; RunFailed
        with the message of the worker that failed first, if none came to the end.
    """
    prepare(workers)
    with TemporaryDirectory(prefix="relaxcomm-") as folder, signals.signals(), signals.no_child_left():
        store, place = invitation.listen(address)
        invitation.invite(store, configuration)
        tell(f"to add a worker: relaxcomm join {place}")
        launcher = _Launcher(work, workers, place, Path(folder), restarts, fork_server.begin())
        try:
            return launcher.run()
        finally:
            invitation.end(store)


@dataclass
class _Worker:
    """A place for one process after another.

    Args:
        rank: with which the first one began.
        process: the present one, or None.
        lives: how many there were before it.
        began: when it did.
        short_lives: how many in a row did not last.
        due: when the next one begins, or None.
    """

    rank: int
    process: BaseProcess | None
    lives: int = 0
    began: float = field(default_factory=time.monotonic)
    short_lives: int = 0
    due: float | None = None


class _Launcher(Generic[T]):
    """Starts workers and watches them.

    Args:
        work: of each.
        size: how many.
        place: HOST:PORT of the store.
        folder: in which they leave results and reports.
        restarts: of each, at most.
        changed: variables of the environment, by `fork_server.begin`.
    """

    def __init__(
        self,
        work: Callable[[], T],
        size: int,
        place: str,
        folder: Path,
        restarts: int,
        changed: Mapping[str, str | None],
    ) -> None:
        self._work, self._size, self._place = work, size, place
        self._folder, self._restarts, self._changed = folder, restarts, changed
        self._failed: dict[int, int] = {}  # exit codes of the last failures, by rank
        self._console = Console(stderr=True)
        self._done: Path | None = None  # the result of the first that came to the end

    def run(self) -> T:
        """Watch until nobody is left.

        Raises: RunFailed if none came to the end.
        """
        workers = [_Worker(rank, self._start(rank, 0)) for rank in range(self._size)]
        while living := [(one, one.process) for one in workers if one.process is not None]:
            wait([process.sentinel for _, process in living], _LOOK_SECONDS)
            for worker, process in living:
                if process.exitcode is not None:
                    self._ended(worker, process, others=len(living) > 1)
            if self._done is None and any(worker.process is not None for worker, _ in living):
                self._begin_again(workers)
        if self._done is None:
            raise first_failure(self._folder, self._failed, self._size)
        result: T = pickle.loads(self._done.read_bytes())  # a worker of this process wrote it
        return result

    def _begin_again(self, workers: list[_Worker]) -> None:
        """Start those whose pause is over."""
        for worker in workers:
            if worker.due is not None and time.monotonic() >= worker.due:
                worker.due, worker.lives = None, worker.lives + 1
                worker.process, worker.began = self._start(worker.rank, worker.lives), time.monotonic()

    def _start(self, rank: int, life: int) -> BaseProcess:
        own = _environment(rank, self._size, self._place) if life == 0 else {JOIN: self._place}
        begin = (self._work, str(self._folder), rank, life, own, os.getpid(), self._changed)
        context = start_processes(  # type: ignore[no-untyped-call]
            _run, begin, nprocs=1, join=False, start_method=fork_server.START_METHOD
        )
        process: BaseProcess = context.processes[0]
        return process

    def _ended(self, worker: _Worker, process: BaseProcess, *, others: bool) -> None:
        """Take note of how a process ended, and when another takes its place."""
        worker.process, exit_code = None, process.exitcode
        if exit_code == 0:
            self._done = self._done or _result(self._folder, worker.rank, worker.lives)
            return
        if exit_code == -signal.SIGINT:
            signals.await_interrupt()
        assert exit_code is not None, "it has ended"
        self._failed.setdefault(worker.rank, exit_code)
        report = report_of(self._folder, worker.rank, worker.lives)
        how = in_words(exit_code) if report is None else str(report)
        then = ""
        if others and self._done is None and not (report is not None and report.bad_input):
            then = self._plan_restart(worker)
        self._say(f"process {process.pid} ended: {how}{then}")

    def _plan_restart(self, worker: _Worker) -> str:
        """What becomes of a place, in words."""
        if worker.lives >= self._restarts:
            return f"; no other takes its place, after {worker.lives} restarts"
        now = time.monotonic()
        worker.short_lives = 0 if now - worker.began > _LONG_LIFE_SECONDS else worker.short_lives + 1
        pause = min(_LONGEST_PAUSE_SECONDS, _PAUSE_SECONDS * 2 ** max(0, worker.short_lives - 1))
        worker.due = now + pause
        return f"; another takes its place in {pause:g} s, restart {worker.lives + 1} of {self._restarts}"

    def _say(self, words: str) -> None:
        """One line, in the place of a bar that a worker shows, or has left without a cursor."""
        if self._console.is_terminal:
            self._console.file.write("\r\x1b[2K")
            self._console.show_cursor()
        tell(words)


def _environment(rank: int, size: int, place: str) -> dict[str, str]:
    """What a worker that begins with the others must know, as torchrun says it."""
    host, port = invitation.split_address(place)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # no rank holds the store
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def _run(
    index: int,
    work: Callable[[], T],
    folder: str,
    rank: int,
    life: int,
    own: Mapping[str, str],
    launcher: int,
    changed: Mapping[str, str | None],
) -> None:
    """What each worker process does."""
    signals.end_at_interrupt()
    fork_server.enter(launcher, changed)
    for name in RANK_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(own)
    with reporting(Path(folder), rank, life):
        write_whole(_result(Path(folder), rank, life), pickle.dumps(work()))


def _result(folder: Path, rank: int, life: int) -> Path:
    return folder / f"result-{rank}-{life}"
