"""What a fault cost those who were not its victim: time, and work that was done in vain."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from benchmarks.faults.cells import BATCH_SIZE, Cell
from benchmarks.faults.launch import Found, Rank


def held_up_seconds(outcome: str, found: Found, others: Sequence[Rank]) -> float | None:
    """How long the fault held up those who are not its victim."""
    since = found.fault_seconds
    if since is None or outcome == "hangs":
        return None
    if outcome == "ends":
        return round(max(rank.notes[-1]["seconds"] for rank in others) - since, 3)
    gaps = []
    for rank in others:
        times = [note["seconds"] for note in rank.of("step")]
        pairs = [(b - a, b) for a, b in itertools.pairwise(times) if b > since]
        if pairs:
            gaps.append(max(pairs)[1] - since)
    return round(max(gaps), 3) if gaps else None


def lost_work(cell: Cell, found: Found) -> tuple[int, int]:
    """Steps and samples that the model never saw, although a rank had computed on them."""
    steps = samples = 0
    for index, rank in enumerate(found.ranks):
        notes = rank.of("step")
        if index == cell.fault.victim:
            last = notes[-1]["synchronisations"] if notes else 0
            own = [note for note in notes if note["synchronisations"] == last][1:]
            steps, samples = steps + len(own) + 1, samples + sum(n["samples"] for n in own) + BATCH_SIZE
        else:
            given_up = [note for note in notes if not note["trained"]]
            steps, samples = steps + len(given_up), samples + sum(note["samples"] for note in given_up)
    return steps, samples
