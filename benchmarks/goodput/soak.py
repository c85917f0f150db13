"""A run in which a worker is killed, ended or stopped every minute, and comes back each time.

    make soak                                               # an hour
    python -m benchmarks.goodput.soak --minutes 15

Held are: every worker ends well, with the same model; the accuracy of no minute after the first falls by more
than 2 points below the best before; and the worker that lives from the beginning to the end has no more
memory, descriptors or threads at the end than when the first third was over, but for what one look varies by.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.goodput.counting import begin_of
from benchmarks.goodput.crews import SIZE, Ours
from benchmarks.report import Report, make_parser

_FAULTS = ("SIGKILL", "SIGSTOP", "SIGTERM")
_START_SECONDS, _STOPPED_SECONDS, _END_SECONDS, _LOOK_SECONDS = 180.0, 5.0, 180.0, 0.2
_STEPS_TO_THE_END = 200
_MORE_BYTES, _MORE_DESCRIPTORS, _MORE_THREADS, _WORSE = 24 << 20, 4, 4, 0.02


class Soaked(Ours):
    """Workers that can be stopped, too."""

    module = "soak_worker"

    def hurt(self, worker: int, fault: str) -> None:
        """Do something to a worker; one that is stopped goes on after a while."""
        self._processes[worker].send_signal(getattr(signal, fault))
        if fault == "SIGSTOP":
            time.sleep(_STOPPED_SECONDS)
            self._processes[worker].send_signal(signal.SIGCONT)

    def end(self) -> list[int | None]:
        """Tell all to end at a step that none has reached; their exit codes."""
        deadline = time.monotonic() + _END_SECONDS
        while (now := self.notes(0)[-1])["ranks"] < SIZE and time.monotonic() < deadline:
            self.look()  # nobody is admitted to a run that has ended
            time.sleep(_LOOK_SECONDS)
        part = self._folder / "end.part"
        part.write_text(str(now["step"] + _STEPS_TO_THE_END))
        part.rename(self._folder / "end")
        deadline = time.monotonic() + _END_SECONDS
        while time.monotonic() < deadline and any(one.poll() is None for one in self._processes.values()):
            time.sleep(_LOOK_SECONDS)
        return [one.poll() for one in self._processes.values()]


def soak(minutes: float, between_seconds: float) -> dict[str, Any]:
    """Run for so long, with a fault now and then; what was seen."""
    with tempfile.TemporaryDirectory(prefix="soak") as folder:
        crew, faults = Soaked(Path(folder), sys.executable), []
        try:
            crew.start()
            begin = _meet(crew)
            while (now := time.monotonic() - begin) < 60 * minutes:
                if now >= between_seconds * (len(faults) + 0.5):
                    worker, fault = 1 + len(faults) % (SIZE - 1), _FAULTS[len(faults) % len(_FAULTS)]
                    worker = 1 + (worker + len(faults) // (SIZE - 1)) % (SIZE - 1)  # each has each in turn
                    crew.hurt(worker, fault)
                    faults.append({"seconds": round(now, 1), "worker": worker, "fault": fault})
                time.sleep(_LOOK_SECONDS)
                crew.look()
            codes = crew.end()
            workers = [crew.notes(worker) for worker in range(SIZE)]
            return {
                "faults": faults,
                "started_again": crew.restarted,
                "exit_codes": codes,
                "sums": [note["sum"] for notes in workers for note in notes if note["kind"] == "done"],
                "minutes": _by_minute(workers[0], begin),
                "errors": crew.errors()[-4_000:],
                "load_average": os.getloadavg()[0],
            }
        finally:
            crew.close()


def _meet(crew: Ours) -> float:
    """Wait until all train; when they began to."""
    deadline = time.monotonic() + _START_SECONDS
    while (begin := begin_of([crew.notes(worker) for worker in range(SIZE)], steps=1)) is None:
        if time.monotonic() > deadline:
            raise RuntimeError(f"not all workers train after {_START_SECONDS:g} s: {crew.errors()[-2000:]}")
        time.sleep(_LOOK_SECONDS)
    return begin


def _by_minute(notes: Sequence[Mapping[str, Any]], begin: float) -> list[dict[str, float]]:
    """Of the worker that lives from the beginning to the end: medians of each minute."""
    minutes: dict[int, list[Mapping[str, Any]]] = {}
    for note in notes:
        if note["kind"] == "step":
            minutes.setdefault(int((note["seconds"] - begin) // 60), []).append(note)
    keys = ("accuracy", "ranks", "resident_bytes", "descriptors", "threads", "step")
    return [{key: float(median(note[key] for note in of)) for key in keys} for of in minutes.values()]


def wrong(found: Mapping[str, Any]) -> Iterator[str]:
    """What is not as it must be."""
    if found["exit_codes"] != [0] * SIZE:
        yield f"workers ended with {found['exit_codes']}"
    if len(set(found["sums"])) != 1:
        yield f"workers ended with different models: {found['sums']}"
    minutes = found["minutes"][1:]
    best = 0.0
    for number, one in enumerate(minutes, start=1):
        if one["accuracy"] < best - _WORSE:
            yield f"the accuracy fell from {best:.3f} to {one['accuracy']:.3f} in minute {number}"
        best = max(best, one["accuracy"])
    whole = [one for one in minutes if one["ranks"] == SIZE]  # connections are as many as workers
    if not whole:
        yield "the workers were never complete for half a minute"
        return
    first, last = whole[len(whole) // 3], whole[-1]
    for key, more in (
        ("resident_bytes", _MORE_BYTES),
        ("descriptors", _MORE_DESCRIPTORS),
        ("threads", _MORE_THREADS),
    ):
        if last[key] > first[key] + more:
            yield f"{key} grew from {first[key]:.0f} to {last[key]:.0f}"


def main() -> int:
    parser = make_parser("soak", __doc__, minutes=60, between_seconds=60)
    arguments = parser.parse_args()
    report = Report(arguments)
    found = soak(arguments.minutes, arguments.between_seconds)
    found["wrong"] = list(wrong(found))
    report.close(found)
    print(f"{len(found['faults'])} faults in {arguments.minutes} minutes: {found['wrong'] or 'all held'}")
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
