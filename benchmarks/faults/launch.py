"""Starts the ranks of a cell, does to them what must be done from outside, and collects what they noted."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks.faults import notes
from benchmarks.faults.cells import SIZE, Cell
from benchmarks.faults.forks import StoreKeeper, start
from benchmarks.faults.worker import Place, run
from benchmarks.lab.network import Host, hosts

_LOOK_SECONDS = 0.02
_UNDONE_AFTER_SECONDS = {"SIGSTOP for 20 s": 20.0, "link cut for 5 s": 5.0}


@dataclass(frozen=True)
class Rank:
    """What became of a rank.

    Args:
        notes: that it made.
        exit_code: None where it did not end by itself.
        errors: what it wrote to standard error.
    """

    notes: list[dict[str, Any]]
    exit_code: int | None
    errors: str

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Its notes of a kind."""
        return [note for note in self.notes if note["kind"] == kind]


@dataclass(frozen=True)
class Found:
    """What was seen in a cell.

    Args:
        ranks: by rank.
        fault_seconds: when it happened, on the clock of the notes; None in a run without.
        checkpoints: problems with those that were left behind.
    """

    ranks: list[Rank]
    fault_seconds: float | None
    checkpoints: list[str]


def launch(cell: Cell) -> Found:
    """Run a cell to its end, or to its limit."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faults")))
        if cell.fault.needs == "disk":
            stack.enter_context(_small_disk(folder / "checkpoints"))
        on: Sequence[Host | None] = [None] * (SIZE + 1)
        if cell.fault.needs == "hosts":
            on = stack.enter_context(hosts(SIZE + 1))
        keeper = stack.enter_context(StoreKeeper(on[SIZE]))  # a launcher's host is not a worker's
        places = [Place(rank, folder, keeper.address, keeper.port) for rank in range(SIZE)]
        processes = [
            start(run, cell, place, host=on[place.rank], errors=folder / f"{place.rank}.errors")
            for place in places
        ]
        try:
            fault_seconds = _watch(cell, places, processes, on[cell.fault.victim])
        finally:
            codes = [process.exitcode for process in processes]
            for process in processes:
                process.kill()
                process.join()
        ranks = [
            Rank(notes.read(place.notes), code, (folder / f"{place.rank}.errors").read_text())
            for place, code in zip(places, codes, strict=True)
        ]
        return Found(ranks, fault_seconds, _damaged(cell, folder / "checkpoints"))


def _watch(
    cell: Cell, places: Sequence[Place], processes: Sequence[BaseProcess], host: Host | None
) -> float | None:
    """Wait until all have ended, or the limit; when the fault happened."""
    fault, deadline = cell.fault, time.monotonic() + cell.fault.limit_seconds
    victim, since, undone = processes[fault.victim], None, False
    while time.monotonic() < deadline and any(process.is_alive() for process in processes):
        time.sleep(_LOOK_SECONDS)
        if since is None and (since := _when(places)) is not None and host is not None:
            host.cut()
        if since is None or undone:
            continue
        if fault.name in _UNDONE_AFTER_SECONDS:
            undone = time.monotonic() - since > _UNDONE_AFTER_SECONDS[fault.name]
        elif fault.name == "SIGSTOP for good":  # until the others have ended; then it learns of that
            undone = not any(one.is_alive() for one in processes if one is not victim)
        if undone and host is not None:
            host.mend()
        elif undone and victim.pid is not None:
            os.kill(victim.pid, signal.SIGCONT)
    return since


def _when(places: Sequence[Place]) -> float | None:
    for place in places:
        for note in notes.read(place.notes):
            if note["kind"] == "fault":
                return float(note["seconds"])
    return None


@contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _damaged(cell: Cell, folder: Path) -> list[str]:
    """What is wrong with the checkpoints that a failed save must not have touched."""
    if cell.fault.needs != "disk":
        return []
    from relaxcomm.checkpoint.manifest import checkpoints, verify
    from relaxcomm.errors import ConfigError

    complete = [one for one in checkpoints(folder) if one.manifest is not None]
    if len(complete) != 1:
        return [f"{len(complete)} complete checkpoints instead of the one that was saved in time"]
    assert complete[0].manifest is not None
    try:
        verify(complete[0].folder, sorted(complete[0].manifest.files.items()))
    except ConfigError as error:
        return [str(error)]
    return []
