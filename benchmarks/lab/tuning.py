"""The best learning rate and period of every contender, on the same grid for all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import median
from types import MappingProxyType
from typing import Any

from benchmarks.lab.counted import Counted, find
from benchmarks.lab.crew import Crew
from benchmarks.lab.entries import Entry
from benchmarks.lab.quality import reached
from benchmarks.lab.recording import Log
from benchmarks.lab.trial import Job
from benchmarks.lab.workloads import WORKLOADS

Rate = str | None
_TIMED_STEPS = 16


@dataclass(frozen=True)
class Grid:
    """What is tried for every contender.

    Args:
        learning_rates: of the task's optimizer; None for the workload's.
        periods: that are left out of those of an entry if they are not here; None for all.
        seeds: of the trials; others than the final ones.
        steps: of a trial, optimizer steps; None for the workload's.
        counted: trials of earlier results, which are taken as they are.
    """

    learning_rates: tuple[float, ...] | None = None
    periods: tuple[int, ...] | None = None
    seeds: tuple[int, ...] = (100, 101)
    steps: int | None = None
    counted: Counted = field(default_factory=dict)

    def rates_of(self, workload: str) -> tuple[float, ...]:
        return self.learning_rates or WORKLOADS[workload].learning_rates

    def periods_of(self, entry: Entry) -> tuple[int, ...]:
        kept = tuple(one for one in entry.periods if self.periods is None or one in self.periods)
        return kept or entry.periods[:1]


@dataclass(frozen=True)
class Tuned:
    """An entry's setting at a rate.

    Args:
        learning_rate: of the task's optimizer.
        period: steps, for those that have one.
        steps: to the target, the median over the tuning's seeds on unshaped links.
        step_seconds: at the rate.
    """

    learning_rate: float
    period: int
    steps: float
    step_seconds: float

    @property
    def seconds(self) -> float:
        """To the target, as predicted."""
        return self.steps * self.step_seconds


def job_of(entry: Entry, workload: str, learning_rate: float, period: int, seed: int, **more: Any) -> Job:
    """A trial of an entry, evaluated where its workers have just averaged, and no more often than others."""
    more.setdefault("every", max(period, WORKLOADS[workload].every))
    return Job(
        offset=entry.late(period),
        workload=workload,
        contender=entry.contender,
        settings=dict(entry.settings(period)),
        learning_rate=learning_rate,
        seed=seed,
        **more,
    )


def steps_to_target(
    crew: Crew, workload: str, entries: Iterable[Entry], grid: Grid, log: Log
) -> dict[tuple[str, float, int], float]:
    """Steps to the target by label, learning rate and period, which do not depend on the network.

    Entries with the same arithmetic share a row of the table.
    """
    found, job = {}, WORKLOADS[workload]
    for entry in (one for one in entries if one.same_as is None):
        for learning_rate, period in product(grid.rates_of(workload), grid.periods_of(entry)):
            counts = []
            for seed in grid.seeds:
                trial = job_of(entry, workload, learning_rate, period, seed, steps=grid.steps)
                record = find(grid.counted, crew.workers, trial) or crew.run(trial, None)
                log("tuning", {"label": entry.label, "period": period, **record})
                counts.append(reached(record, job.target, job.higher_is_better).steps)
            found[entry.label, learning_rate, period] = median(counts)
    return found


def step_seconds(
    crew: Crew, workload: str, entry: Entry, period: int, rate: Rate, steps: int, log: Log
) -> float:
    """Time of a step at a rate, the period's exchange spread over its steps."""
    steps = -(-steps // period) * period
    learning_rate = WORKLOADS[workload].learning_rates[0]
    record = crew.run(job_of(entry, workload, learning_rate, period, 0, steps=steps, every=0), rate)
    log("step time", {"label": entry.label, "period": period, **record})
    return float(record["seconds"]) / steps


def tune(
    crew: Crew,
    workload: str,
    entries: Sequence[Entry],
    rates: Sequence[Rate],
    grid: Grid,
    log: Log,
    *,
    known: Mapping[tuple[str, Rate], Tuned] = MappingProxyType({}),
) -> dict[tuple[str, Rate], Tuned]:
    """The setting of each entry at each rate that promises the least time to the target, or is `known`."""
    chosen = dict(known)
    wanted = [(entry, rate) for rate in rates for entry in entries if (entry.label, rate) not in known]
    counts = steps_to_target(crew, workload, entries, grid, log) if wanted else {}
    for entry, rate in wanted:
        row = entry.same_as or entry.label
        options = []
        for period in grid.periods_of(entry):
            per_step = step_seconds(crew, workload, entry, period, rate, _TIMED_STEPS, log)
            for learning_rate in grid.rates_of(workload):
                steps = counts.get((row, learning_rate, period), math.inf)
                options.append(Tuned(learning_rate, period, steps, per_step))
        chosen[entry.label, rate] = min(options, key=lambda one: one.seconds)
    return chosen
