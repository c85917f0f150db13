"""What goes wrong, done by the rank that it happens to."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import relaxcomm
from benchmarks.faults.cells import ALGORITHMS, Cell
from benchmarks.faults.notes import Notes
from relaxcomm.network.operations import Agree, Label, Operation
from relaxcomm.network.torch_distributed import TorchTransport

_SIGNALS = {
    "SIGKILL in compute": signal.SIGKILL,
    "SIGKILL of rank 0": signal.SIGKILL,
    "SIGTERM": signal.SIGTERM,
    "SIGSTOP for 20 s": signal.SIGSTOP,
    "SIGSTOP for good": signal.SIGSTOP,
}


def to_this_process(fault: str) -> None:
    """What happens between two steps; links are cut, and batches spoilt, elsewhere."""
    if fault == "exception":
        raise KeyError("the user's own mistake")
    if fault in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[fault])


def die_in_an_exchange(last_words: Callable[[], None] = lambda: None) -> None:
    """End as soon as an operation that moves a model is under way.

    Args:
        last_words: called just before.
    """
    issue = TorchTransport.issue

    def issue_and_die(transport: TorchTransport, operation: Operation, label: Label) -> Any:
        pending = issue(transport, operation, label)
        if not isinstance(operation, Agree):
            last_words()
            os.kill(os.getpid(), signal.SIGKILL)
        return pending

    TorchTransport.issue = issue_and_die  # type: ignore[method-assign]  # in this process alone


def to_checkpoints(cell: Cell, engine: relaxcomm.Engine, folder: Path, notes: Notes) -> None:
    """Save, spoil what was saved or where it goes, and note what is said of it."""
    foreign = cell.fault.name == "checkpoint foreign"
    if not foreign:
        relaxcomm.checkpoint.save(engine, folder)
    if engine.world.rank == 0:
        notes.add("fault", named=_spoil(cell, folder))
    try:
        if cell.fault.needs == "disk":
            relaxcomm.checkpoint.save(engine, folder)
        else:
            relaxcomm.checkpoint.load(engine, folder)
    except relaxcomm.RelaxcommError as error:
        notes.add("refused", type=type(error).__name__, message=str(error))


def _spoil(cell: Cell, folder: Path) -> str:
    """Do the damage; what an error must name."""
    if cell.fault.needs == "disk":
        _fill(folder / "full")
        return "No space left on device"
    if cell.fault.name == "checkpoint foreign":
        return "0.weight"
    (saved,) = folder.iterdir()
    files = sorted(path for path in saved.iterdir() if path.is_file() and path.stat().st_size)
    index = ALGORITHMS.index(cell.algorithm)
    chosen = files[index % len(files)]  # each algorithm loses another one
    content = bytearray(chosen.read_bytes())
    if cell.fault.name == "checkpoint truncated":
        content = content[: len(content) // 2]
    else:
        content[len(content) * (index + 1) // (len(ALGORITHMS) + 1)] ^= 1 << index % 8
    chosen.write_bytes(content)
    return chosen.name


def _fill(path: Path) -> None:
    """Leave no room on the disk."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return
