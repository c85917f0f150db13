"""Local workers that may end one by one: the others go on, and a newcomer takes the place of each."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, TypeVar

from rich.console import Console

from relaxcomm.cli import elastic_worker, fork_server, invitation, signals
from relaxcomm.cli.elastic_worker import Processes
from relaxcomm.cli.exit_codes import RunFailed
from relaxcomm.cli.launcher import LOOPBACK, prepare
from relaxcomm.cli.worker_reports import cause_of, exit_code_in_words, first_failure, report_of
from relaxcomm.network import elastic_store
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
    admit, until one has come to the end of the run. Before the workers have met nobody can admit another, so
    that all begin again.

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
    with (
        TemporaryDirectory(prefix="relaxcomm-") as folder,
        signals.signals(),
        signals.no_worker_left(),
        fork_server.begun() as changed,
    ):
        store, address = invitation.listen(address)
        invitation.invite(store, configuration)
        tell(f"to add a worker: relaxcomm join {address}")
        processes = Processes(work, workers, address, Path(folder), changed)
        launcher = _Launcher(processes, store, restarts)
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
        processes: that it starts.
        store: where they meet.
        restarts: of each, at most.
    """

    def __init__(self, processes: Processes[T], store: Any, restarts: int) -> None:
        self._processes, self._store, self._restarts = processes, store, restarts
        self._cause: RunFailed | None = None  # of the first failure that did not follow from another
        self._console = Console(stderr=True)
        self._done: tuple[int, int] | None = None  # rank and life of the first that came to the end

    def run(self) -> T:
        """Watch until nobody is left.

        Raises: RunFailed if none came to the end.
        """
        start, size = self._processes.start, self._processes.size
        workers = [_Worker(rank, start(rank, 0, joins=False)) for rank in range(size)]
        while living := [(one, one.process) for one in workers if one.process is not None]:
            wait([process.sentinel for _, process in living], _LOOK_SECONDS)
            for worker, process in living:
                if process.exitcode is not None and worker.process is process:
                    self._ended(worker, process, workers)
            if self._done is None and any(worker.process is not None for worker, _ in living):
                self._begin_again(workers)
        if self._done is None:
            raise self._cause or first_failure(self._processes.folder, {}, size)
        return self._processes.result(*self._done)

    def _begin_again(self, workers: Sequence[_Worker]) -> None:
        """Start those whose pause is over."""
        for worker in workers:
            if worker.due is not None and time.monotonic() >= worker.due:
                self._start(worker, joins=True)

    def _start(self, worker: _Worker, *, joins: bool) -> None:
        worker.due, worker.lives, worker.began = None, worker.lives + 1, time.monotonic()
        worker.process = self._processes.start(worker.rank, worker.lives, joins=joins)

    def _ended(self, worker: _Worker, process: BaseProcess, workers: Sequence[_Worker]) -> None:
        """Take note of how a process ended, and when another takes its place."""
        worker.process, exit_code = None, process.exitcode
        folder = self._processes.folder
        if exit_code == 0 and elastic_worker.result_path(folder, worker.rank, worker.lives).exists():
            self._done = self._done or (worker.rank, worker.lives)
            return
        if exit_code == -signal.SIGINT:
            signals.await_interrupt()
        assert exit_code is not None, "it has ended"
        report = report_of(folder, worker.rank, worker.lives)
        self._cause = self._cause or cause_of(report, worker.rank, exit_code)
        said = exit_code_in_words(exit_code) if report is None else report["message"]
        ended = f"process {process.pid} ended: {said}"
        can_restart = self._done is None and not (report is not None and report["bad_input"])
        if self._done is None and not elastic_store.has_run(self._store):
            self._begin_anew(worker, workers, ended, can_restart=can_restart)
        elif can_restart and any(one.process is not None for one in workers):
            self._say(ended + self._plan_restart(worker))
        else:
            self._say(ended)

    def _begin_anew(
        self, worker: _Worker, workers: Sequence[_Worker], ended: str, *, can_restart: bool
    ) -> None:
        """One has ended before the workers have met, and nobody can admit another: end all, or start all."""
        for one in workers:
            if one.process is not None:
                elastic_worker.end(one.process)
                one.process = None
        if not can_restart or worker.lives >= self._restarts:
            self._say(ended)
            return
        elastic_store.forget_run(self._store)  # they may have met meanwhile
        pause = self._next_pause(worker)
        number = f"restart {worker.lives + 1} of {self._restarts}"
        self._say(f"{ended}; the workers have not met yet: all begin again in {pause:g} s, {number}")
        time.sleep(pause)
        for one in workers:
            self._start(one, joins=False)

    def _plan_restart(self, worker: _Worker) -> str:
        """What becomes of a place, in words."""
        if worker.lives >= self._restarts:
            return "; no other takes its place" + (f", after {worker.lives} restarts" if worker.lives else "")
        pause = self._next_pause(worker)
        worker.due = time.monotonic() + pause
        return f"; another takes its place in {pause:g} s, restart {worker.lives + 1} of {self._restarts}"

    def _next_pause(self, worker: _Worker) -> float:
        """Seconds until another process begins."""
        lived = time.monotonic() - worker.began
        worker.short_lives = 0 if lived > _LONG_LIFE_SECONDS else worker.short_lives + 1
        return min(_LONGEST_PAUSE_SECONDS, _PAUSE_SECONDS * 2.0 ** max(0, worker.short_lives - 1))

    def _say(self, words: str) -> None:
        """One line, in the place of a bar that a worker shows, or has left without a cursor."""
        if self._console.is_terminal:
            self._console.file.write("\r\x1b[2K")
            self._console.show_cursor()
        tell(words)
