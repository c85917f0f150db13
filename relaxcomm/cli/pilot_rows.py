"""Pilot runs as lines and as JSON: quality and time together, with intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from relaxcomm.cli.rows import show_rows, show_text
from relaxcomm.system.quantities import duration, number
from relaxcomm.training.pilot_statistics import Pilot, Spread, best_by, confidence


def show_pilots(pilots: Sequence[Pilot], target: float | None, within: float | None) -> None:
    """Print one row a pilot, and below them which algorithm was first."""
    by_workers = _by_workers(pilots)
    rows = []
    for held in by_workers.values():
        after = _within(held, within)
        rows += [_cells(one, target, after) for one in held]
    show_rows(_headings(pilots, target, within), rows, named_by=2)
    for held in by_workers.values():
        show_text(_verdict(held, target, _within(held, within)))
    runs = len(pilots[0].results)
    sure = f"they hold the median of all seeds with {confidence(runs):.0%}"
    show_text(f"trained in virtual time; in brackets the least and greatest of {runs} seeds: {sure}")


def pilots_as_json(
    pilots: Sequence[Pilot], target: float | None, within: float | None
) -> list[dict[str, Any]]:
    """The same for machines, with the history of each run; what was never reached is null."""
    found = []
    for held in _by_workers(pilots).values():
        after = _within(held, within)
        for one in held:
            measured = one.measure_after(after)
            found.append(
                {
                    "algorithm": one.name,
                    "workers": one.workers,
                    "metric": one.results[0].metric,
                    "seconds": asdict(one.seconds),
                    "measure": asdict(one.measure),
                    "within_seconds": after,
                    "measure_within": None if measured is None else asdict(measured),
                    "seconds_to_target": None if target is None else _finite(one.seconds_to(target)),
                    "confidence": confidence(len(one.results)),
                    "runs": [
                        {"seed": run.seed, "history": [asdict(point) for point in run.history]}
                        for run in one.results
                    ],
                }
            )
    return found


def _by_workers(pilots: Sequence[Pilot]) -> Mapping[int, list[Pilot]]:
    found: dict[int, list[Pilot]] = {}
    for one in pilots:
        found.setdefault(one.workers, []).append(one)
    return found


def _within(pilots: Sequence[Pilot], within: float | None) -> float:
    """The seconds after which the measures are compared: when the first algorithm has ended."""
    return min(one.seconds.median for one in pilots) if within is None else within


def _headings(pilots: Sequence[Pilot], target: float | None, within: float | None) -> list[str]:
    metric = pilots[0].results[0].metric
    when = "when the first ends" if within is None else f"after {within:g} s"
    heads = ["trained", "workers", "steps", "seconds", f"{metric} at the end", f"{metric} {when}"]
    return heads if target is None else [*heads, f"seconds to {target:g}"]


def _cells(one: Pilot, target: float | None, after: float) -> list[str]:
    measured = one.measure_after(after)
    cells = [
        one.name,
        str(one.workers),
        str(one.results[0].steps),
        _words(one.seconds),
        _words(one.measure),
        "nothing yet" if measured is None else _words(measured),
    ]
    return cells if target is None else [*cells, _words(one.seconds_to(target))]


def _verdict(pilots: Sequence[Pilot], target: float | None, after: float) -> str:
    workers, result = pilots[0].workers, pilots[0].results[0]
    where = f"{workers} workers"
    best = best_by(pilots, target, after)
    if not best or (target is not None and math.isinf(best[0][1].median)):
        return f"{where}: no algorithm comes to {result.metric} {target:g}; train longer, or aim lower"
    (first, value), others = best[0], best[1:]
    close = [one.name for one, seen in others if _overlap(value, seen)]
    if target is not None:
        said = f"{where}: {first.name} is the first at {result.metric} {target:g}, after {_words(value)} s"
    else:
        said = f"{where}: after {duration(after)} {first.name} has the best {result.metric}, {_words(value)}"
    if close:
        said += f"; its interval meets that of {', '.join(close)}: more seeds would tell them apart, or not"
    return said


def _overlap(one: Spread, other: Spread) -> bool:
    return one.low <= other.high and other.low <= one.high


def _words(spread: Spread) -> str:
    median, low, high = (
        "never" if math.isinf(one) else number(one) for one in (spread.median, spread.low, spread.high)
    )
    return f"{median} [{low}, {high}]"


def _finite(spread: Spread) -> dict[str, float | None]:
    return {name: None if math.isinf(value) else value for name, value in asdict(spread).items()}
