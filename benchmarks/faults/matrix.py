"""Runs cells, several at a time, and keeps what they show."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from benchmarks.faults.cells import ALGORITHMS, FAULTS, NONE, Cell
from benchmarks.faults.launch import Found, launch
from benchmarks.faults.verdicts import Verdict, judge
from benchmarks.report import environment, write_result

AT_ONCE = 4  # most wait, for a limit to pass or for a rank that stands still


class Matrix:
    """Runs cells; the undisturbed run of each algorithm only once.

    Args:
        at_once: cells at a time.
    """

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._pool = ThreadPoolExecutor(at_once)
        self._undisturbed: dict[str, Found] = {}
        self._locks = {name: threading.Lock() for name in ALGORITHMS}

    def run(
        self, cells: Sequence[Cell], say: Callable[[Verdict], None] = lambda verdict: None
    ) -> dict[Cell, Verdict]:
        """What each cell shows."""

        def one(cell: Cell) -> Verdict:
            verdict = judge(cell, launch(cell), self._without_fault(cell.algorithm))
            say(verdict)
            return verdict

        return dict(zip(cells, self._pool.map(one, cells), strict=True))

    def _without_fault(self, algorithm: str) -> Found:
        with self._locks[algorithm]:
            if algorithm not in self._undisturbed:
                found = launch(Cell(algorithm, NONE))
                for rank in found.ranks:
                    assert rank.of("done"), f"{algorithm} fails without any fault: {rank.errors}"
                self._undisturbed[algorithm] = found
            return self._undisturbed[algorithm]


def write(path: Path, verdicts: dict[Cell, Verdict]) -> None:
    """Keep all that was seen, and a table beside it."""
    found = [asdict(verdict) for verdict in verdicts.values()]
    busy = {"load_average_after": os.getloadavg()[0]}
    write_result(path, {"environment": environment() | busy, "results": found})
    path.with_suffix(".md").write_text(_table(verdicts))


def _table(verdicts: dict[Cell, Verdict]) -> str:
    shown = {(cell.fault.name, cell.algorithm): _words(verdict) for cell, verdict in verdicts.items()}
    wrong = [verdict for verdict in verdicts.values() if verdict.wrong]
    lines = [
        f"# {len(verdicts)} cells of the fault matrix, {len(wrong)} not as they must be",
        "",
        "Four Gloo ranks on digits, the drift guard on; seconds are from the fault until training went on, "
        "or until everybody else had ended with an error that names the victim. Several cells ran at a time.",
        "",
        f"| fault | {' | '.join(ALGORITHMS)} |",
        f"|---|{'---|' * len(ALGORITHMS)}",
    ]
    for fault in FAULTS:
        row = [shown.get((fault, algorithm), "") for algorithm in ALGORITHMS]
        lines.append(f"| {fault} | {' | '.join(row)} |")
    lines += ["", *(f"- {verdict.cell}: {'; '.join(verdict.wrong)}" for verdict in wrong)]
    return "\n".join(lines).rstrip() + "\n"


def _words(verdict: Verdict) -> str:
    words = [verdict.outcome if not verdict.wrong else f"**{verdict.outcome}: wrong**"]
    if verdict.seconds is not None:
        words.append(f"{verdict.seconds:.1f} s")
    if verdict.samples_lost:
        words.append(f"{verdict.steps_lost} steps, {verdict.samples_lost} samples lost")
    if verdict.accuracy is not None:
        words.append(f"{100 * verdict.accuracy:.1f} % ({100 * (verdict.undisturbed or 0):.1f})")
    return ", ".join(words)
