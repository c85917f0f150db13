"""How many samples were useful: those in the model's past at the end, each counted once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.goodput.workload import BATCH_SIZE

Notes = Sequence[Mapping[str, Any]]


def begin_of(workers: Sequence[Notes], steps: int = 5) -> float | None:
    """When every worker had so many steps; None as long as one has fewer."""
    took = [[note["seconds"] for note in notes if note["kind"] == "step"] for notes in workers]
    if any(len(times) < steps for times in took):
        return None
    return float(max(times[steps - 1] for times in took))


def useful_samples(workers: Sequence[Notes], begin: float, end: float) -> int:
    """Samples of the steps that the model has taken from `begin` to `end`.

    A step that was taken anew, from a checkpoint, counts once; one that is not yet taken anew does not count.

    Args:
        workers: what each has noted.
        begin, end: in seconds, on the notes' clock.
    """
    steps = [
        (note["step"], worker, note["seconds"])
        for worker, notes in enumerate(workers)
        for note in notes
        if note["kind"] == "step" and note["seconds"] <= end
    ]
    latest = max(steps, key=lambda one: one[2], default=(-1, 0, 0.0))[0]
    before = {(step, worker) for step, worker, seconds in steps if seconds <= begin}
    taken = {(step, worker) for step, worker, _ in steps if step <= latest + 1}
    return BATCH_SIZE * len(taken - before)
