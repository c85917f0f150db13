"""Local workers through torchrun's Python interface: one function on each, one message if any fails."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from relaxcomm.cli.failures import BAD_INPUT, RunFailed, describe
from relaxcomm.errors import CommunicationError

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_LAUNCHER_LOGGERS = (
    "torch.distributed.elastic",
    "torch.distributed.launcher",
    "torch.multiprocessing.spawn",
)


def launch(work: Callable[[], T], workers: int, *, verbose: bool = False) -> T:
    """Run `work` on local worker processes, as torchrun would, and return what rank 0 returned.

    Args:
        work: picklable, since each worker is a fresh process.
        workers: how many processes.
        verbose: let the launcher log.

    Raises: RunFailed with the message of the worker that failed first.
    """
    # Without it each worker takes all cores, and they fight.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // workers)))
    if not verbose:
        _silence_launcher()
    with TemporaryDirectory(prefix="relaxcomm-") as folder, _restored_signals():
        settings = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=workers,
            run_id=uuid.uuid4().hex[:8],
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            local_addr="127.0.0.1",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
        )
        try:
            results: dict[int, T] = elastic_launch(settings, _work)(work, folder)
        except ChildFailedError as error:
            raise _first_failure(Path(folder), error, workers) from None
    return results[0]


def _work(work: Callable[[], T], folder: str) -> T:
    """What each worker process does."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches all; only the launcher speaks of it
    rank = int(os.environ["RANK"])
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
        Path(folder, f"failure-{rank}.json").write_text(json.dumps(report), encoding="utf-8")
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


@contextmanager
def _restored_signals() -> Iterator[None]:
    """The launcher leaves its signal handlers behind."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
