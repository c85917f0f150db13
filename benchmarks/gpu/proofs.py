"""Runs files of tests side by side, says what each test has shown, and goes on behind one that hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu import telling
from benchmarks.report import why

ROOT = Path(__file__).parents[2]
_LOOK_SECONDS = 0.2
_GRACE_SECONDS = 10  # for pytest itself to end a test that takes too long
_BETWEEN_SECONDS = 120  # in which no test runs: imports, and the end
_LONG = 0.75  # of the seconds of a test: one that fails after so many has waited for what does not come
_MOST_HANGS = 2  # in a row; what they have in common, the file's other tests are likely to have too
_ALONE = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # a machine's plugins are not ours
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # a process that has asked CUDA cannot be forked
}
_PYTEST = (
    *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout", "-p", telling.__name__),
    *("-o", "filterwarnings=default", "--disable-warnings", "--tb=short", "--continue-on-collection-errors"),
)
_ENDED_BY_ITSELF = (0, 1, 5)  # 1: a test has failed; 5: none was left


def prove(
    tests: Sequence[str], limit_seconds: float, test_seconds: float, at_once: int = 1
) -> Iterator[dict[str, Any]]:
    """The outcome of each test when it is known: its name, "proven", "failed", "skipped" or "not reached".

    Args:
        tests: files or folders from the repository's root, in the order in which they are begun; of those
            side by side, one is from the end: what all the first ones hang in does not hide the last ones.
        limit_seconds: for all of them together.
        test_seconds: for one test. It is ended then, with all processes of its own, and the next one begins.
        at_once: files that are tried side by side; most of the time a test waits, or compiles.
    """
    deadline, stop = time.monotonic() + limit_seconds, threading.Event()
    told: SimpleQueue[dict[str, Any]] = SimpleQueue()
    waiting = deque(_files(tests))

    def lane(number: int) -> None:
        take = waiting.pop if number == 1 else waiting.popleft
        with suppress(IndexError):  # nothing is left
            while True:
                run(take())

    def run(file: str) -> None:
        try:
            with TemporaryDirectory() as folder:
                for outcome in _Proofs(file, Path(folder), test_seconds, stop).run(deadline):
                    told.put(outcome)
        except Exception as error:  # the other files are still tried
            told.put({"test": file, "outcome": "failed", "why": why(error)})

    with ThreadPoolExecutor(at_once) as pool:
        try:
            yield from _news_of([pool.submit(lane, number) for number in range(at_once)], told)
        finally:
            stop.set()


def _files(tests: Sequence[str]) -> Iterator[str]:
    """Folders' files in their place."""
    for one in tests:
        inside = sorted(path.name for path in (ROOT / one).glob("test_*.py"))
        yield from [f"{one}/{name}" for name in inside] or [one]


def _news_of(running: Sequence[Future[None]], told: SimpleQueue[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What they tell, until all have ended."""
    is_over = False
    while not is_over:
        is_over = all(one.done() for one in running)  # asked before the queue is found empty
        try:
            while True:
                yield told.get(timeout=0.0 if is_over else _LOOK_SECONDS)
        except Empty:
            continue
    for one in running:
        one.result()


class _Proofs:
    """Processes of pytest's, one behind the other.

    Args:
        tests: a file, or one test of it.
        folder: where the processes tell what has happened.
        test_seconds: that a test may take.
        stop: when set, nothing more is tried.
    """

    def __init__(self, tests: str, folder: Path, test_seconds: float, stop: threading.Event) -> None:
        self._tests, self._test_seconds, self._stop = tests, test_seconds, stop
        self._told, self._output = folder / "told", folder / "output"
        self._read = 0
        self._planned: dict[str, None] = {}
        self._running: str | None = None
        self._since = 0.0
        self._hangs = 0

    def run(self, deadline: float) -> Iterator[dict[str, Any]]:
        """Start pytest anew behind each test that ends it, until nothing is left, or tests only hang."""
        is_over = False
        while not (is_over or self._is_hopeless() or self._is_past(deadline)):
            process = self._start()
            try:
                while process.poll() is None and not (self._is_hopeless() or self._is_late(deadline)):
                    time.sleep(_LOOK_SECONDS)
                    yield from self._news()
            finally:
                status = process.poll()
                _end(process)
            yield from self._news()
            is_over = (
                status in _ENDED_BY_ITSELF
                or self._is_hopeless()
                or (status is None and self._is_past(deadline))
            )
            if not is_over and status != telling.ANEW:
                is_over = self._running is None  # it would end the same way again
                yield self._ended_by(status)
        why_not = f"{_MOST_HANGS} tests before it hung" if self._is_hopeless() else "the time was over"
        for name in self._planned if self._read else [self._tests]:
            yield {"test": name, "outcome": "not reached", "why": why_not}

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, *_PYTEST, f"--timeout={self._test_seconds:g}", self._tests]
        environment = {**os.environ, **_ALONE, telling.FILE: str(self._told)}
        self._running, self._since = None, time.monotonic()
        with self._output.open("w") as file:
            return subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=file, stderr=file, start_new_session=True
            )

    def _is_hopeless(self) -> bool:
        return self._hangs >= _MOST_HANGS

    def _is_past(self, deadline: float) -> bool:
        return self._stop.is_set() or time.monotonic() >= deadline

    def _is_late(self, deadline: float) -> bool:
        allowed = _BETWEEN_SECONDS if self._running is None else self._test_seconds + _GRACE_SECONDS
        return self._is_past(min(deadline, self._since + allowed))

    def _news(self) -> Iterator[dict[str, Any]]:
        """What was told since the last look."""
        told = telling.read(self._told)
        for facts in told[self._read :]:
            self._since = time.monotonic()
            if "planned" in facts:
                self._planned[facts["planned"]] = None
            elif "begun" in facts:
                self._running = facts["begun"]
            else:
                self._planned.pop(facts["test"], None)
                self._running = None
                self._count(facts)
                yield facts
        self._read = len(told)

    def _ended_by(self, status: int | None) -> dict[str, Any]:
        """The outcome of the test that ran when the process ended; the next process leaves it out."""
        said = self._output.read_text(errors="replace")[-3000:]
        how = "took too long" if status is None else f"ended the process with {status}"
        facts = {
            "test": self._running or "pytest",
            "outcome": "failed",
            "seconds": round(time.monotonic() - self._since, 2),
            "why": f"{how}:\n{said}",
        }
        told = [*telling.read(self._told), facts]  # without a line that the process was ended in
        self._told.write_text("".join(f"{json.dumps(one)}\n" for one in told))
        self._read = len(told)
        self._planned.pop(facts["test"], None)
        self._count(facts)
        return facts

    def _count(self, facts: dict[str, Any]) -> None:
        """Count those that hang in a row; once they are too many it stays so."""
        took_long = facts["outcome"] == "failed" and facts["seconds"] >= _LONG * self._test_seconds
        if not self._is_hopeless():
            self._hangs = self._hangs + 1 if took_long else 0


def _end(process: subprocess.Popen[bytes]) -> None:
    """It, and all that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()
