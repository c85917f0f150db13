"""Goodput of relaxcomm, torchft and a plain restart from checkpoints, in turn, under one kill every 30 s.

    python -m benchmarks.goodput --torchft-python .venv-bench/bin/python
    python -m benchmarks.goodput --rounds 5 --round-seconds 120

Four workers over loopback; a worker that was killed is started again at once. Useful are the samples of steps
that are in the model's past: not of a step that was given up, nor of one that a restart takes anew.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.goodput.counting import begin_of, useful_samples
from benchmarks.goodput.crews import SIZE, Crew, contenders
from benchmarks.goodput.workload import BATCH_SIZE, STEP_SECONDS
from benchmarks.report import Report, make_parser

_START_SECONDS, _LOOK_SECONDS = 120.0, 0.1


def measure(kind: type[Crew], python: str, seconds: float, kill_seconds: float) -> dict[str, Any]:
    """One round of a contender."""
    with tempfile.TemporaryDirectory(prefix="goodput", ignore_cleanup_errors=True) as folder:
        crew = kind(Path(folder), python)
        try:
            crew.start()
            begin, deadline = None, time.monotonic() + _START_SECONDS
            while begin is None:
                time.sleep(_LOOK_SECONDS)
                begin = begin_of([crew.notes(worker) for worker in range(SIZE)])
                if time.monotonic() > deadline:
                    return {"contender": kind.name, "failed": crew.errors()[-2000:]}
            kills: list[float] = []
            while (now := time.monotonic()) < begin + seconds:
                if now >= begin + kill_seconds * (len(kills) + 0.5):
                    crew.kill((len(kills) + 1) % SIZE)
                    kills.append(round(now - begin, 1))
                time.sleep(_LOOK_SECONDS)
                crew.look()
            workers = [crew.notes(worker) for worker in range(SIZE)]
        finally:
            crew.close()
        samples = useful_samples(workers, begin, begin + seconds)
        losses = [note["loss"] for note in workers[0] if note["kind"] == "step"]
        return {
            "contender": kind.name,
            "samples_per_second": round(samples / seconds, 1),
            "share_of_ideal": round(samples / seconds / (SIZE * BATCH_SIZE / STEP_SECONDS), 3),
            "kills_at_seconds": kills,
            "started_again": crew.restarted,
            "first_loss": losses[0],
            "last_loss": losses[-1],
            "longest_pauses_seconds": _pauses(workers, begin, begin + seconds),
            "load_average": os.getloadavg()[0],
        }


def _pauses(workers: list[list[dict[str, Any]]], begin: float, end: float) -> list[float]:
    """The longest times in which no worker took a step."""
    notes = [note for notes in workers for note in notes if note["kind"] == "step"]
    times = sorted(note["seconds"] for note in notes if begin <= note["seconds"] <= end)
    gaps = sorted((b - a for a, b in itertools.pairwise([begin, *times, end])), reverse=True)
    return [round(gap, 2) for gap in gaps[:8]]


def main() -> int:
    parser = make_parser("goodput", __doc__, rounds=4, round_seconds=150, kill_seconds=30)
    parser.add_argument("--torchft-python", help="of an environment that has torchft; left out without")
    parser.add_argument("--only", nargs="+", help="contenders whose names begin so")
    arguments = parser.parse_args()
    report, results = Report(arguments), []
    for _ in range(arguments.rounds):
        for kind, python in contenders(arguments.torchft_python).items():
            if arguments.only and not kind.name.startswith(tuple(arguments.only)):
                continue
            results.append(measure(kind, python, arguments.round_seconds, arguments.kill_seconds))
            print(results[-1], flush=True)
            report.write(results)
    report.close(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
