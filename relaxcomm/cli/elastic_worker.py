"""The processes of an elastic run's workers: what each is told, does and leaves behind."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Generic, TypeVar

from torch.multiprocessing.spawn import start_processes

from relaxcomm.cli import fork_server, signals
from relaxcomm.cli.worker_reports import reporting
from relaxcomm.system.environment import JOIN, RANK_VARIABLES
from relaxcomm.system.files import write_whole
from relaxcomm.system.tcp import split_address

T = TypeVar("T")
_END_SECONDS = 5.0


@dataclass(frozen=True)
class Processes(Generic[T]):
    """Starts processes that do the same.

    Args:
        work: of each; picklable.
        size: how many begin together.
        address: HOST:PORT of the store.
        folder: in which they leave results and reports.
        changed: variables of the environment, by `fork_server.begun`.
    """

    work: Callable[[], T]
    size: int
    address: str
    folder: Path
    changed: Mapping[str, str | None]

    def start(self, rank: int, life: int, *, joins: bool) -> BaseProcess:
        """Start one.

        Args:
            rank: with which its place began.
            life: how many processes were in that place before.
            joins: whether it joins those that are there, or begins with the others.
        """
        own = {JOIN: self.address} if joins else _environment(rank, self.size, self.address, life)
        begin = (self, rank, life, own, os.getpid())
        context = start_processes(  # type: ignore[no-untyped-call]
            _run, begin, nprocs=1, join=False, start_method=fork_server.START_METHOD
        )
        process: BaseProcess = context.processes[0]
        return process

    def result(self, rank: int, life: int) -> T:
        """What one has left that came to the end."""
        left = result_path(self.folder, rank, life).read_bytes()
        result: T = pickle.loads(left)  # a process of ours wrote it
        return result


def end(process: BaseProcess) -> None:
    """End one in its own way, or at once if that takes long."""
    process.terminate()
    process.join(_END_SECONDS)
    process.kill()
    process.join()


def _environment(rank: int, size: int, address: str, life: int) -> dict[str, str]:
    """What a worker that begins with the others must know, as torchrun says it."""
    host, port = split_address(address)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # no rank holds the store
        "TORCHELASTIC_RESTART_COUNT": str(life),  # under which they meet
    }


def _run(
    index: int, processes: Processes[T], rank: int, life: int, own: Mapping[str, str], launcher: int
) -> None:
    """What each worker process does."""
    signals.end_at_interrupt()
    fork_server.enter(launcher, processes.changed)
    for name in RANK_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(own)
    with reporting(processes.folder, rank, life):
        write_whole(result_path(processes.folder, rank, life), pickle.dumps(processes.work()))


def result_path(folder: Path, rank: int, life: int) -> Path:
    """Where one leaves what it returns, which only one does that has come to the end."""
    return folder / f"result-{rank}-{life}"
