"""A run that was ended goes on: what its file holds already is not run again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks.lab import tables
from benchmarks.lab.tables import Record
from benchmarks.lab.tuning import Rate, Tuned

_SETTING = [field.name for field in fields(Tuned)]
_FIXED = ("learning_rates", "periods", "steps", "tuning_seeds")


class Before:
    """What a file holds of one workload with so many workers.

    Args:
        records: of the file.
        workload: its name.
        workers: their number.
        network: as records are marked.
    """

    def __init__(self, records: Iterable[Record], workload: str, workers: int, network: str) -> None:
        place = {"workload": workload, "workers": workers, "network": network}
        own = [one for one in records if place.items() <= one.items()]
        self.tuned: Mapping[tuple[str, Rate], Tuned] = {
            (one["label"], one["rate"]): Tuned(**{name: one[name] for name in _SETTING})
            for one in own
            if one["kind"] == "tuned"
        }
        self._averages = {one["rate"] for one in own if one["kind"] == "last average"}
        self._finals = {(one["label"], one["rate"], one["seed"]) for one in own if one["kind"] == "final"}

    def has_average(self, rate: Rate) -> bool:
        """Whether it is known what a last average costs."""
        return rate in self._averages

    def has_final(self, label: str, rate: Rate, seed: int) -> bool:
        """Whether a contender has run there."""
        return (label, rate, seed) in self._finals


def check_same(records: Iterable[Record], asked: Mapping[str, Any]) -> None:
    """Refuse to go on with another tuning: its settings would stand beside the file's as if of one run.

    Args:
        records: of the file.
        asked: the arguments of the run that goes on.

    Raises: ValueError, naming what differs.
    """
    before = next((one["arguments"] for one in records if one["kind"] == "environment"), None)
    if before is None:
        return
    differing = [
        f"--{name.replace('_', '-')} {asked[name]}, there {before[name]}"
        for name in _FIXED
        if before[name] != str(asked[name])
    ]
    if differing:
        raise ValueError(
            f"the run in that file was tuned otherwise: {'; '.join(differing)}; ask for the same again, or "
            "name another --output"
        )


def read(path: Path) -> list[Record]:
    """The records of a file that a run may have left; none if there is none."""
    return tables.read(path) if path.exists() else []
