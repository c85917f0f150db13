"""Local workers through torchrun's Python interface: one function on each, one message if any fails."""

from __future__ import annotations

import logging
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import psutil
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from relaxcomm.cli import fork_server, signals
from relaxcomm.cli.exit_codes import RunFailed
from relaxcomm.cli.worker_reports import first_failure, reporting
from relaxcomm.errors import ConfigError
from relaxcomm.network.store_server import serve_store
from relaxcomm.system.quantities import data_size

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
"""Where this host alone reaches a store."""
_WORKER_BYTES = 150_000_000  # of memory that a worker does not share with others, at the very least
_LAUNCHER_LOGGERS = (
    "torch.distributed.elastic",
    "torch.distributed.launcher",
    "torch.multiprocessing.spawn",
)


def launch(
    work: Callable[[], T], workers: int, *, verbose: bool = False, begin_seconds: float | None = None
) -> T:
    """Run `work` on local worker processes, as torchrun would, and return what rank 0 returned.

    Args:
        work: picklable, since each worker is a process of its own.
        workers: how many processes.
        verbose: let the launcher log.
        begin_seconds: in which all must have begun; None for as long as it takes.

    Raises: ConfigError for more workers than memory holds; RunFailed with the message of the worker that
        failed first, or that not all began in time.
    """
    prepare(workers)
    if not verbose:
        _silence_launcher()
    with (
        TemporaryDirectory(prefix="relaxcomm-") as folder,
        signals.signals(),
        signals.no_worker_left(),
        fork_server.begun() as changed,
    ):
        store = serve_store(LOOPBACK)  # the launcher's own would listen on all addresses
        settings = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=workers,
            run_id=uuid.uuid4().hex[:8],
            rdzv_backend="static",
            rdzv_configs={"rank": 0},
            rdzv_endpoint=f"{store.host}:{store.port}",
            local_addr=store.host,
            max_restarts=0,
            start_method=fork_server.START_METHOD,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            **_handled(),
        )
        try:
            with _deadline(Path(folder), workers, begin_seconds):
                results: dict[int, T] = elastic_launch(settings, _work)(work, folder, os.getpid(), changed)
        except ChildFailedError as error:
            if any(failure.exitcode == -signal.SIGINT for failure in error.failures.values()):
                signals.await_interrupt()
            exit_codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
            raise first_failure(Path(folder), exit_codes, workers) from None
    return results[0]


def _handled() -> dict[str, Any]:
    """The signals that torch's launcher takes; SIGINT is Python's: then workers get a SIGTERM."""
    if "signals_to_handle" not in (field.name for field in fields(LaunchConfig)):
        return {}  # torch 2.8 asks nobody, and takes all
    return {"signals_to_handle": ",".join(one.name for one in signals.ending())}


def prepare(workers: int) -> None:
    """Share the cores out, and refuse what would bring the machine to its knees before it says a word.

    Raises: ConfigError for more workers than memory holds.
    """
    needed, available = workers * _WORKER_BYTES, psutil.virtual_memory().available
    if needed > available:
        raise ConfigError(
            f"{workers} workers need at least {data_size(needed)} of memory, and this machine has "
            f"{data_size(available)} left; start {max(1, available // _WORKER_BYTES)} at most"
        )
    # Without it each worker takes all cores, and they fight.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // workers)))


@contextmanager
def _deadline(folder: Path, workers: int, seconds: float | None) -> Iterator[None]:
    """End all workers, in the launcher's own way, if some of them have not begun in time."""
    lock, begun, done = threading.Lock(), workers, False

    def look() -> None:
        nonlocal begun
        with lock:
            if done:  # nothing is ended that has ended by itself
                return
            begun = len(list(folder.glob("begun-*")))
            if begun < workers:
                os.kill(os.getpid(), signal.SIGTERM)

    timer = threading.Timer(seconds or 0.0, look)
    timer.daemon = True
    try:
        try:
            if seconds is not None:
                timer.start()
            yield
        finally:  # here, too, the signal may come
            timer.cancel()
            with lock:
                done = True
    except SignalException:
        if begun == workers:
            raise
        raise RunFailed(
            f"only {begun} of {workers} workers began within {seconds:g} s; this machine has "
            f"{len(os.sched_getaffinity(0))} cores: start fewer, or allow more with --timeout"
        ) from None


def _work(work: Callable[[], T], folder: str, launcher: int, changed: Mapping[str, str | None]) -> T:
    """What each worker process does."""
    signals.end_at_interrupt()
    fork_server.enter(launcher, changed)
    rank = int(os.environ["RANK"])
    Path(folder, f"begun-{rank}").touch()
    with reporting(Path(folder), rank):
        return work()


def _silence_launcher() -> None:
    """The launcher logs each failure at length; the one message comes from `first_failure`."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(_LAUNCHER_LOGGERS):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
