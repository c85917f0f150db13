"""What workers leave behind when they fail, and which of them failed first."""

from __future__ import annotations

import json
import signal
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from relaxcomm.cli.exit_codes import BAD_INPUT, RunFailed, describe
from relaxcomm.errors import CommunicationError
from relaxcomm.system.files import write_whole

Report: TypeAlias = Mapping[str, Any]
_STAY_SECONDS = 0.5  # of a worker that others have failed, so that the launcher finds first how those ended


@contextmanager
def reporting(folder: Path, rank: int, life: int = 0) -> Iterator[None]:
    """In a worker: leave a report of an error in a folder, also of one that would end it as if all were done.

    Args:
        folder: of the launcher.
        rank: with which the worker began.
        life: how often it was started before.
    """
    try:
        yield
    except BaseException as error:
        report = {
            "rank": rank,
            "time": time.time(),
            "message": describe(error),
            "details": traceback.format_exc(),
            "bad_input": isinstance(error, BAD_INPUT),
            "consequence": _is_consequence(error),
        }
        write_whole(_path(folder, rank, life), json.dumps(report))
        if report["consequence"]:
            time.sleep(_STAY_SECONDS)
        raise SystemExit(1) from None


def report_of(folder: Path, rank: int, life: int) -> Report | None:
    """What a worker has left, as `reporting` has written it, if it has."""
    path = _path(folder, rank, life)
    return _read(path) if path.exists() else None


def cause_of(report: Report | None, rank: int, exit_code: int) -> RunFailed | None:
    """Why a worker has failed; None if another's failure was the cause.

    Args:
        report: that it has left, if it has.
        rank: with which it began.
        exit_code: with which it ended.
    """
    if report is None:
        return _silent(rank, exit_code)
    return None if report["consequence"] else _told(report)


def exit_code_in_words(exit_code: int) -> str:
    """How a process ended."""
    return f"exit code {exit_code}" if exit_code >= 0 else signal_name(-exit_code)


def signal_name(number: int) -> str:
    """Such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time one
        return f"signal {number}"


def first_failure(folder: Path, exit_codes: Mapping[int, int], workers: int) -> RunFailed:
    """The cause: what failed first, and not because another rank had failed.

    Args:
        folder: in which workers have left reports.
        exit_codes: of workers that ended badly, by rank.
        workers: how many there were.
    """
    reports = [_read(path) for path in folder.glob("failure-*.json")]
    silent = sorted(set(range(workers)) - {report["rank"] for report in reports})
    causes = [report for report in reports if not report["consequence"]]
    if not causes:
        for rank in silent:
            # SIGTERM is how the launcher ends the others.
            if exit_codes.get(rank, -signal.SIGTERM) != -signal.SIGTERM:
                return _silent(rank, exit_codes[rank])
    if not reports:
        return RunFailed("the workers were ended from outside")
    first = min(causes or reports, key=lambda report: report["time"])
    ending = f" (no message from rank {', '.join(map(str, silent))})" if not causes and silent else ""
    return _told(first, ending)


def _silent(rank: int, exit_code: int) -> RunFailed:
    return RunFailed(f"rank {rank} ended without a message: {exit_code_in_words(exit_code)}")


def _told(report: Report, ending: str = "") -> RunFailed:
    """What a report tells."""
    who = "" if report["bad_input"] else f"rank {report['rank']}: "
    message = f"{who}{report['message']}{ending}"
    return RunFailed(message, report["details"], bad_input=report["bad_input"])


def _read(path: Path) -> Report:
    found: Report = json.loads(path.read_text(encoding="utf-8"))
    return found


def _path(folder: Path, rank: int, life: int) -> Path:
    return folder / f"failure-{rank}-{life}.json"


def _is_consequence(error: BaseException) -> bool:
    """Whether the network failed: then another rank, which ended without waiting, is the likely cause."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, CommunicationError) or (
        isinstance(error, RuntimeError) and any("/torch/distributed/" in frame.filename for frame in frames)
    )
