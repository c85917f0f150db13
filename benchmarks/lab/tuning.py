"""The best learning rate and period of every contender, on the same grid for all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.lab.crew import Crew
from benchmarks.lab.entries import Entry
from benchmarks.lab.quality import reached
from benchmarks.lab.trial import Job
from benchmarks.lab.workloads import WORKLOADS

Rate = str | None
Log = Callable[[str, Mapping[str, Any]], None]


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
    crew: Crew, workload: str, entries: Iterable[Entry], seeds: Sequence[int], log: Log
) -> dict[tuple[str, float, int], float]:
    """Steps to the target by label, learning rate and period, which do not depend on the network.

    Entries with the same arithmetic share a row of the table.
    """
    job = WORKLOADS[workload]
    found = {}
    for entry in entries:
        if entry.same_as is not None:
            continue
        for learning_rate in job.learning_rates:
            for period in entry.periods:
                counts = []
                for seed in seeds:
                    record = crew.run(job_of(entry, workload, learning_rate, period, seed), None)
                    counts.append(reached(record, job.target, job.higher_is_better).steps)
                    log("tuning", {"label": entry.label, "period": period, **record})
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
    seeds: Sequence[int],
    log: Log,
    *,
    timed_steps: int = 16,
) -> dict[tuple[str, Rate], Tuned]:
    """The setting of each entry at each rate that promises the least time to the target."""
    counts = steps_to_target(crew, workload, entries, seeds, log)
    chosen = {}
    for rate in rates:
        for entry in entries:
            row = entry.same_as or entry.label
            options = []
            for period in entry.periods:
                per_step = step_seconds(crew, workload, entry, period, rate, timed_steps, log)
                for learning_rate in WORKLOADS[workload].learning_rates:
                    steps = counts.get((row, learning_rate, period), math.inf)
                    options.append(Tuned(learning_rate, period, steps, per_step))
            chosen[entry.label, rate] = min(options, key=lambda one: one.seconds)
    return chosen
