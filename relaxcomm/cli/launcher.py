"""Local workers through torchrun's Python interface: one function on each, one message if any fails."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import psutil
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from relaxcomm.cli import signals
from relaxcomm.cli.exit_codes import BAD_INPUT, RunFailed, describe
from relaxcomm.errors import CommunicationError, ConfigError
from relaxcomm.network.store_server import serve_store
from relaxcomm.system.files import write_whole

T = TypeVar("T")

_LOOPBACK = "127.0.0.1"
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
        work: picklable, since each worker is a fresh process.
        workers: how many processes.
        verbose: let the launcher log.
        begin_seconds: in which all must have begun; None for as long as it takes.

    Raises: ConfigError for more workers than memory holds; RunFailed with the message of the worker that
        failed first, or that not all began in time.
    """
    _check_memory(workers)
    # Without it each worker takes all cores, and they fight.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // workers)))
    if not verbose:
        _silence_launcher()
    with TemporaryDirectory(prefix="relaxcomm-") as folder, signals.signals(), signals.no_child_left():
        store = serve_store(_LOOPBACK)  # the launcher's own would listen on all addresses
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
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            signals_to_handle="SIGTERM,SIGHUP,SIGQUIT",  # SIGINT is Python's: then workers get a SIGTERM
        )
        try:
            with _deadline(Path(folder), workers, begin_seconds):
                results: dict[int, T] = elastic_launch(settings, _work)(work, folder, os.getpid())
        except ChildFailedError as error:
            if any(failure.exitcode == -signal.SIGINT for failure in error.failures.values()):
                signals.await_interrupt()
            raise _first_failure(Path(folder), error, workers) from None
    return results[0]


def _check_memory(workers: int) -> None:
    """Refuse what would bring the machine to its knees before it says a word."""
    needed, available = workers * _WORKER_BYTES, psutil.virtual_memory().available
    if needed > available:
        raise ConfigError(
            f"{workers} workers need at least {needed / 1e9:.2g} GB of memory, and this machine has "
            f"{available / 1e9:.2g} GB left; start {max(1, available // _WORKER_BYTES)} at most"
        )


def _raise(number: int, frame: object) -> None:
    raise SignalException("ended", signal.Signals(number))


@contextmanager
def _deadline(folder: Path, workers: int, seconds: float | None) -> Iterator[None]:
    """End all workers, in the launcher's own way, if some of them have not begun in time."""
    lock, begun = threading.Lock(), workers

    def look() -> None:
        nonlocal begun
        with lock:  # nothing is ended that has ended by itself
            begun = len(list(folder.glob("begun-*")))
            if begun < workers and not done:
                os.kill(os.getpid(), signal.SIGTERM)

    done = False
    timer = threading.Timer(seconds or 0.0, look)
    timer.daemon = True
    if seconds is not None:
        signal.signal(signal.SIGTERM, _raise)  # until the launcher has a handler of its own
        timer.start()
    try:
        yield
    except SignalException:
        if begun == workers:
            raise
        raise RunFailed(
            f"only {begun} of {workers} workers began within {seconds:g} s; this machine has "
            f"{len(os.sched_getaffinity(0))} cores: start fewer, or allow more with --timeout"
        ) from None
    finally:
        timer.cancel()
        with lock:
            done = True


def _work(work: Callable[[], T], folder: str, launcher: int) -> T:
    """What each worker process does."""
    signals.end_at_interrupt()
    if os.getppid() != launcher:  # it was killed before PyTorch bound this process's life to it
        raise SystemExit(1)
    rank = int(os.environ["RANK"])
    Path(folder, f"begun-{rank}").touch()
    try:
        return work()
    except Exception as error:
        report = {
            "rank": rank,
            "time": time.time(),
            "message": describe(error),
            "details": traceback.format_exc(),
            "bad_input": isinstance(error, BAD_INPUT),
            "consequence": _is_consequence(error),
        }
        write_whole(Path(folder, f"failure-{rank}.json"), json.dumps(report))
        raise SystemExit(1) from None


def _is_consequence(error: Exception) -> bool:
    """Whether the network failed: then another rank, which ended without waiting, is the likely cause."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, CommunicationError) or (
        isinstance(error, RuntimeError) and any("/torch/distributed/" in frame.filename for frame in frames)
    )


def _first_failure(folder: Path, error: ChildFailedError, workers: int) -> RunFailed:
    """The cause: what failed first, and not because another rank had failed."""
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("failure-*.json")]
    silent = sorted(set(range(workers)) - {report["rank"] for report in reports})
    causes = [report for report in reports if not report["consequence"]]
    if not causes:
        for rank in silent:
            failure = error.failures.get(rank)
            # SIGTERM is how the launcher ends the others.
            if failure is not None and failure.exitcode != -signal.SIGTERM:
                how = failure.signal_name() if failure.exitcode < 0 else f"exit code {failure.exitcode}"
                return RunFailed(f"rank {rank} ended without a message: {how}")
    if not reports:
        return RunFailed("the workers were ended from outside")
    first = min(causes or reports, key=lambda report: report["time"])
    message = first["message"] if first["bad_input"] else f"rank {first['rank']}: {first['message']}"
    if not causes and silent:
        message += f" (no message from rank {', '.join(map(str, silent))})"
    return RunFailed(message, first["details"], bad_input=first["bad_input"])


def _silence_launcher() -> None:
    """The launcher logs each failure at length; the one message comes from `_first_failure`."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(_LAUNCHER_LOGGERS):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
