"""What a run did: the record of one rank, and of the job."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from relaxcomm.monitoring.snapshot import jsonable
from relaxcomm.system.files import write_whole


@dataclass(frozen=True)
class Point:
    """One evaluation of the averaged model.

    Args:
        step: optimizer steps taken; in a Result the mean over the ranks, where each has its own.
        seconds: training time so far, without evaluations.
        bytes_sent: sent so far for training, without what evaluations sent.
        measure: held-out measure.
    """

    step: int
    seconds: float
    bytes_sent: int
    measure: float


@dataclass(frozen=True)
class Change:
    """Other ranks than before, in an elastic run.

    Args:
        generation: that begins.
        step: optimizer steps of the run until then.
        seconds: training time until then, without evaluations.
        workers: number of ranks from then on.
        lost: what became of those that are gone, by their number: a rank at the beginning has its rank, and
            each that joins a number of its own.
        joined: numbers of those that were not there before.
    """

    generation: int
    step: int
    seconds: float
    workers: int
    lost: Mapping[int, str] = field(default_factory=dict)
    joined: tuple[int, ...] = ()

    @property
    def words(self) -> str:
        """In one line."""
        who = [f"worker {one} {how}" for one, how in self.lost.items()]
        who += [f"worker {one} joined" for one in self.joined]
        left = f"{self.workers} worker{'s' if self.workers != 1 else ''}"
        return f"step {self.step}: {'; '.join(who)}: {left} from then on"


@dataclass(frozen=True)
class RankRecord:
    """What one rank saw.

    Args:
        history: its evaluations.
        seconds: training time, without evaluations.
        statistics: `Engine.statistics` after the engine was closed.
        bytes_by_primitive: sent for training, by exchange primitive or purpose.
    """

    history: tuple[Point, ...]
    seconds: float
    statistics: Mapping[str, Any]
    bytes_by_primitive: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a job did, over all its ranks.

    Args:
        algorithm: its name.
        composition: its rules, as Python shows them.
        task: its name.
        metric: name of the held-out measure.
        higher_is_better: whether more of it is better.
        measure: held-out measure of the model at the end.
        workers: number of ranks at the end; sums and means are over these.
        device: what the first rank trained on, a GPU's model or "cpu".
        seed: of the task.
        seconds: training time of the slowest rank, without evaluations.
        steps: optimizer steps of a rank, the mean where they differ, as with clients (`fedavg`).
        synchronisations: in which a rank exchanged something, the mean where they differ; 0 if none ever did.
        lssr: local steps as a fraction of all steps, of all ranks together.
        bytes_sent: sum over the ranks, for training.
        bytes_received: sum over the ranks, for training.
        evaluation_bytes_sent: sum over the ranks, for the averages that are evaluated, and the last one.
        bytes_uncompressed: sum over the ranks of what full synchronisation would have sent.
        step_seconds: mean over the ranks.
        exposed_communication_seconds: mean over the ranks.
        hidden_communication_seconds: mean over the ranks.
        bytes_by_primitive: sent, summed over the ranks, by exchange primitive or purpose.
        history: the evaluations; seconds are the slowest rank's, bytes are summed over the ranks.
        link: what was simulated between the ranks, such as "100 Mbit/s, 5 ms"; None for nothing.
        changes: of the ranks, while it ran.
    """

    algorithm: str
    composition: str
    task: str
    metric: str
    higher_is_better: bool
    measure: float
    workers: int
    device: str
    seed: int
    seconds: float
    steps: int
    synchronisations: int
    lssr: float
    bytes_sent: int
    bytes_received: int
    evaluation_bytes_sent: int
    bytes_uncompressed: int
    step_seconds: float
    exposed_communication_seconds: float
    hidden_communication_seconds: float
    bytes_by_primitive: Mapping[str, int]
    history: tuple[Point, ...]
    link: str | None = None
    changes: tuple[Change, ...] = ()

    @property
    def heading(self) -> str:
        """The measure's name, with a word on its direction where that is not what one expects."""
        return self.metric if self.higher_is_better else f"{self.metric} (lower is better)"

    @property
    def reduction(self) -> float | None:
        """How many times fewer bytes were sent than full synchronisation would have.

        None if none were, or if no step exchanged anything: then the last average is all that was sent.
        """
        if not self.bytes_sent or not self.synchronisations:
            return None
        return self.bytes_uncompressed / self.bytes_sent

    def write(self, folder: str | Path, facts: Mapping[str, object]) -> Path:
        """Write the result as JSON, with `facts` on how it came about, and return the file's path."""
        stem = re.sub(r"[^\w.-]+", "_", self.algorithm)  # what a file name can hold
        text = json.dumps(jsonable({**facts, **asdict(self)}), indent=2, default=str)
        return write_whole(Path(folder) / f"{stem}.json", text + "\n")


def merge(records: Sequence[RankRecord], **facts: Any) -> Result:
    """The job's result from its ranks' records, in rank order.

    Args:
        records: one of each rank.
        facts: the fields of Result that do not come from the records.
    """

    def total(name: str) -> int:
        return int(sum(record.statistics[name] for record in records))

    def mean(name: str) -> float:
        return statistics.fmean(record.statistics[name] for record in records)

    return Result(
        measure=records[0].history[-1].measure,
        workers=len(records),
        seconds=max(record.seconds for record in records),
        steps=round(mean("steps")),
        synchronisations=max(round(mean("synchronisations")), int(total("synchronisations") > 0)),
        lssr=max(0, total("steps") - total("synchronisations")) / max(1, total("steps")),
        bytes_sent=total("bytes_sent"),
        bytes_received=total("bytes_received"),
        evaluation_bytes_sent=total("evaluation_bytes_sent"),
        bytes_uncompressed=total("bytes_uncompressed"),
        step_seconds=mean("step_seconds"),
        exposed_communication_seconds=mean("exposed_communication_seconds"),
        hidden_communication_seconds=mean("hidden_communication_seconds"),
        bytes_by_primitive=_merge_bytes(records),
        history=tuple(_merge_points(points) for points in zip(*(r.history for r in records), strict=True)),
        **facts,
    )


def _merge_bytes(records: Sequence[RankRecord]) -> dict[str, int]:
    names = sorted({name for record in records for name in record.bytes_by_primitive})
    return {name: sum(record.bytes_by_primitive.get(name, 0) for record in records) for name in names}


def _merge_points(points: Sequence[Point]) -> Point:
    return Point(
        step=round(statistics.fmean(point.step for point in points)),
        seconds=max(point.seconds for point in points),
        bytes_sent=sum(point.bytes_sent for point in points),
        measure=points[0].measure,
    )
