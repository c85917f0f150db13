"""What a result file holds: all contenders in each place."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.lab.quality import Reached, reached
from benchmarks.lab.split import Split, seconds_a_step, split_of
from benchmarks.lab.workloads import WORKLOADS

Record = Mapping[str, Any]


class Place(NamedTuple):
    """What contenders are compared at.

    Args:
        workload: its name.
        workers: their number.
        rate: of their links, or None.
        network: as records are marked.
    """

    workload: str
    workers: int
    rate: str | None
    network: str = "namespaces"

    def title(self) -> str:
        """For readers."""
        throttled = " (throttled at the transport, not a network)" if self.network == "throttled" else ""
        return f"{self.workload}, {self.workers} workers, {self.rate or 'unshaped'}{throttled}"


@dataclass(frozen=True)
class Row:
    """One contender in one place.

    Args:
        label: of the contender.
        setting: learning rate and period.
        reached: what the target took, one a seed.
        end: final quality, of the mean model, the median over the seeds.
        split: the time of a step, or None if that is derived.
        derived: whether the time is steps times the time of a step.
        note: what it said itself.
    """

    label: str
    setting: str
    reached: tuple[Reached, ...]
    end: float
    split: Split | None
    derived: bool
    note: str | None

    @property
    def seconds(self) -> float:
        """To the target, the median over the seeds."""
        return median(one.seconds for one in self.reached)

    @property
    def is_ours(self) -> bool:
        """Whether it is one of relaxcomm's own."""
        return self.label.startswith("relaxcomm")


@dataclass(frozen=True)
class Table:
    """All contenders in one place.

    Args:
        place: where.
        limit: seconds of a synchronous run's steps without any communication.
        rows: fastest first.
    """

    place: Place
    limit: float
    rows: tuple[Row, ...]

    @property
    def ours(self) -> list[Row]:
        """relaxcomm's own."""
        return [row for row in self.rows if row.is_ours]

    @property
    def rivals(self) -> list[Row]:
        """All others."""
        return [row for row in self.rows if not row.is_ours]


def synchronous_row(rows: Iterable[Row]) -> Row | None:
    """DDP's or, where peers take no part, that of our `bsp`, which takes the same steps."""
    found = {row.label: row for row in rows}
    return found.get("ddp") or found.get("relaxcomm bsp")


def read(path: Path) -> list[Record]:
    """The records of a result file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def tables(records: Iterable[Record]) -> list[Table]:
    """The finals of a file, as tables."""
    finals: dict[Place, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    averages: dict[Place, tuple[float, float]] = {}
    for record in records:
        if record["kind"] in ("final", "last average"):
            network = record.get("network", "namespaces")  # older files have no other
            place = Place(record["workload"], record["workers"], record["rate"], network)
            if record["kind"] == "final":
                finals[place][record["label"]].append(record)
            else:
                sent = record["bytes_sent"] / record["steps"]
                averages[place] = record["communication"]["average"], sent
    return [_table(place, runs, averages[place]) for place, runs in finals.items()]


def _table(place: Place, runs: Mapping[str, Sequence[Record]], last_average: tuple[float, float]) -> Table:
    alone = seconds_a_step(runs["nothing"])
    rows = [
        _row(label, records, last_average, alone) for label, records in runs.items() if label != "nothing"
    ]
    synchronous = synchronous_row(rows)
    limit = alone * median(one.steps for one in synchronous.reached) if synchronous else math.nan
    return Table(place, limit, tuple(sorted(rows, key=lambda row: row.seconds)))


def _row(label: str, records: Sequence[Record], last_average: tuple[float, float], alone: float) -> Row:
    workload = WORKLOADS[records[0]["workload"]]
    derived = any(record.get("derived") for record in records)
    period = records[0]["period"]
    return Row(
        label=label,
        setting=f"lr {records[0]['learning_rate']:g}" + (f", every {period}" if period > 1 else ""),
        reached=tuple(
            reached(record, workload.target, workload.higher_is_better, last_average) for record in records
        ),
        end=median(record["points"][-1][4] for record in records),
        split=None if derived else split_of(records, alone),
        derived=derived,
        note=next((record["note"] for record in records if record["note"]), None),
    )
