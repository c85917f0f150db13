"""A plugin of pytest's that tells of each test as it begins and ends, and leaves out those already told of.

What it tells outlives a process that is ended: a JSON object a line, in the file that the environment names.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

FILE = "RELAXCOMM_TOLD"
ANEW = 75
"""The status of a process that has told all, and in which nothing more can be tried."""
_AT_PARENTS_END = 1  # Linux's PR_SET_PDEATHSIG


def read(path: Path) -> list[dict[str, Any]]:
    """All that was told so far, in whole lines: one without its end is being written, or never will be."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def _read() -> list[dict[str, Any]]:
    """What this process and those before it have told."""
    return read(Path(os.environ[FILE]))


def _tell(**facts: Any) -> None:
    line = json.dumps(facts).encode() + b"\n"
    with Path(os.environ[FILE]).open("ab", buffering=0) as file:  # a reader may see a part of it
        file.write(line)


def pytest_configure() -> None:
    """End with what has started this process, also where that is killed: others are to have the GPU then."""
    ctypes.CDLL(None).prctl(_AT_PARENTS_END, signal.SIGKILL)  # torch's own function takes seconds to import


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what was tried."""
    tried = {one["test"] for one in _read() if "outcome" in one}
    items[:] = [item for item in items if item.nodeid not in tried]
    for item in items:
        _tell(planned=item.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be imported."""
    if report.failed and not any(one.get("test") == report.nodeid for one in _read()):
        _tell(test=report.nodeid, outcome="failed", seconds=0.0, why=report.longreprtext[-3000:])


def pytest_runtest_logstart(nodeid: str) -> None:
    """It begins."""
    _tell(begun=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """It has ended, or could not begin or be cleared away."""
    if report.when != "call" and report.outcome == "passed":
        return
    outcome = {"passed": "proven", "skipped": "skipped"}.get(report.outcome, "failed")
    why = "" if outcome == "proven" else _why(report)
    _tell(test=report.nodeid, outcome=outcome, seconds=round(report.duration, 2), why=why)
    if "CUDA error" in why:  # the device answers this process no more
        os._exit(ANEW)


def _why(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):  # of a test that is skipped: file, line, words
        return str(report.longrepr[2])
    return str(report.longreprtext)[-3000:]
