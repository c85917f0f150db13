"""When a run is good enough, and what a run cost until then."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

IN_A_ROW = 3  # evaluations for which the quality has to hold
_OWN, _MEAN = 3, 4  # columns of a record's points


@dataclass(frozen=True)
class Reached:
    """What it took to reach the target.

    Args:
        steps: optimizer steps.
        seconds: of training.
        bytes_sent: by all hosts.
    """

    steps: float
    seconds: float
    bytes_sent: float


NEVER = Reached(math.inf, math.inf, math.inf)


def reached(
    record: Mapping[str, Any],
    target: float,
    higher_is_better: bool,
    last_average: tuple[float, float] = (0.0, 0.0),
) -> Reached:
    """When a worker had a model of the quality, or would have had after one last average.

    Replicas that differ are worth what their mean is only once it is made. So the earlier of two counts: the
    first worker's own model is good enough, or the mean is and one average of all parameters is paid.

    Args:
        record: of a trial.
        target: the quality.
        higher_is_better: of the quality.
        last_average: seconds and bytes of one.
    """
    points = record["points"]
    own = _first(points, _OWN, target, higher_is_better)
    mean = _first(points, _MEAN, target, higher_is_better)
    seconds, sent = last_average
    found = [Reached(*point[:3]) for point in (own,) if point is not None]
    if mean is not None:
        found.append(Reached(mean[0], mean[1] + seconds, mean[2] + sent))
    return min(found, key=lambda one: one.seconds, default=NEVER)


def _first(
    points: Sequence[Sequence[float]], column: int, target: float, higher_is_better: bool
) -> Sequence[float] | None:
    index = holds_from([point[column] for point in points], target, higher_is_better)
    return None if index is None else points[index]


def holds_from(qualities: Sequence[float], target: float, higher_is_better: bool) -> int | None:
    """Index of the first evaluation from which the quality holds, or None."""
    row = 0
    for index, quality in enumerate(qualities):
        good = quality >= target if higher_is_better else quality <= target
        row = row + 1 if good else 0
        if row == IN_A_ROW:
            return index - IN_A_ROW + 1
    return None
