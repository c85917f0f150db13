"""What pilot runs over several seeds say of quality and time together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from relaxcomm.training.results import Result


@dataclass(frozen=True)
class Spread:
    """Median, least and greatest of runs that differ in their seed.

    Args:
        median: of the runs.
        low: the least.
        high: the greatest.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of some values; one of a run that never came there is infinite."""
        return cls(statistics.median(values), min(values), max(values))


def confidence(runs: int) -> float:
    """With which probability the least and greatest of some runs hold the median of all possible runs.

    `1 - 2^(1 - k)` for k runs, whatever their distribution.

    Example:
        >>> [round(confidence(runs), 3) for runs in (2, 3, 6)]
        [0.5, 0.75, 0.969]
    """
    return 1 - 2.0 ** (1 - runs)


@dataclass(frozen=True)
class Pilot:
    """Runs of one algorithm on as many workers, which differ in their seed.

    Args:
        name: of the algorithm.
        workers: their number.
        results: one of each seed.
    """

    name: str
    workers: int
    results: tuple[Result, ...]

    @property
    def seconds(self) -> Spread:
        """Seconds of a whole run."""
        return Spread.of([one.seconds for one in self.results])

    @property
    def measure(self) -> Spread:
        """At the end."""
        return Spread.of([one.measure for one in self.results])

    def seconds_to(self, target: float) -> Spread:
        """Until a measure is reached; infinite where it never is."""
        return Spread.of([_reached(one, target) for one in self.results])

    def measure_after(self, seconds: float) -> Spread | None:
        """The last that was seen in so many seconds; None where a run saw none."""
        seen = [[point.measure for point in one.history if point.seconds <= seconds] for one in self.results]
        return Spread.of([measures[-1] for measures in seen]) if all(seen) else None


def _reached(result: Result, target: float) -> float:
    sign = 1 if result.higher_is_better else -1
    reached = (one.seconds for one in result.history if sign * one.measure >= sign * target)
    return next(reached, math.inf)


def best_by(pilots: Sequence[Pilot], target: float | None, within: float) -> list[tuple[Pilot, Spread]]:
    """The pilots, the best first: the soonest at a measure, else the best after some seconds."""
    found: list[tuple[Pilot, Spread]] = []
    for pilot in pilots:
        value = pilot.measure_after(within) if target is None else pilot.seconds_to(target)
        if value is not None:
            found.append((pilot, value))
    greatest_first = target is None and pilots[0].results[0].higher_is_better
    return sorted(found, key=lambda one: -one[1].median if greatest_first else one[1].median)
