"""The standard set: tune every contender, then run all of them in turn, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from benchmarks.lab.crew import Crew
from benchmarks.lab.entries import ENTRIES, Entry
from benchmarks.lab.recording import Log
from benchmarks.lab.resuming import Before
from benchmarks.lab.throttle import link_of
from benchmarks.lab.trial import Job
from benchmarks.lab.tuning import Grid, Rate, Tuned, job_of, tune
from benchmarks.lab.workloads import WORKLOADS

_NOTHING = "nothing"
_LONGER = 2  # than while tuning, a final trial may take, in steps
_LONGEST_SECONDS = 90.0  # of a trial; beyond, its time is derived


def run(
    crew: Crew,
    workload: str,
    labels: Sequence[str],
    rates: Sequence[Rate],
    seeds: Sequence[int],
    grid: Grid,
    log: Log,
    before: Before | None = None,
) -> None:
    """Tune, measure and log everything for one workload, but for what was there `before`."""
    before = before or Before((), workload, crew.workers, crew.network)
    # Whose row of steps is not counted here counts its own.
    entries = [
        e if e.same_as in labels else replace(e, same_as=None) for e in map(ENTRIES.__getitem__, labels)
    ]
    crew.run(_alone(workload, 0, steps=8), None)  # the first use of a model is slow
    tuned = tune(crew, workload, entries, rates, grid, log, known=before.tuned)
    for (label, rate), one in tuned.items():
        if (label, rate) not in before.tuned:
            told = {"network": crew.network, "label": label, "rate": rate, "workload": workload}
            log("tuned", {**told, **asdict(one)})
    for rate in rates:
        if not before.has_average(rate):
            average = Job(workload=workload, contender="every_step", learning_rate=1e-3, steps=5, every=0)
            log("last average", crew.run(average, rate))
    longest = grid.steps or WORKLOADS[workload].steps
    for seed in seeds:
        for rate in rates:
            if not before.has_final(_NOTHING, rate, seed):
                log("final", {"label": _NOTHING, **crew.run(_alone(workload, seed), rate)})
            turn = seed % len(entries)  # nobody is always first
            for entry in entries[turn:] + entries[:turn]:
                if not before.has_final(entry.label, rate, seed):
                    _final(crew, workload, entry, rate, seed, tuned[entry.label, rate], longest, log)


def _alone(workload: str, seed: int, steps: int = 40) -> Job:
    return Job(
        workload=workload,
        contender="nothing",
        learning_rate=WORKLOADS[workload].learning_rates[0],
        seed=seed,
        steps=steps,
        every=0,
    )


def _final(
    crew: Crew,
    workload: str,
    entry: Entry,
    rate: Rate,
    seed: int,
    tuned: Tuned,
    longest: int,
    log: Log,
) -> None:
    """A trial at the tuned setting; where it would take too long, on unshaped links, its time derived."""
    every = WORKLOADS[workload].every
    steps = longest
    if math.isfinite(tuned.steps) and not entry.adapts:
        most = _LONGER * tuned.steps + 4 * max(every, tuned.period)
        steps = min(steps, math.ceil(most / every) * every)
    derived = not entry.adapts and steps * tuned.step_seconds > _LONGEST_SECONDS
    job = job_of(entry, workload, tuned.learning_rate, tuned.period, seed, steps=steps)
    record = crew.run(job, None if derived else rate)
    if derived:
        record |= _derived(record, entry, tuned, rate, crew.workers)
    log("final", {"label": entry.label, "period": tuned.period, "derived": derived, **record})


def _derived(
    record: Mapping[str, Any], entry: Entry, tuned: Tuned, rate: Rate, workers: int
) -> dict[str, Any]:
    """What a trial on unshaped links would have been over links of a rate.

    Each step takes as long as was measured there; or, where steps are uneven, what a host has sent takes the
    link's time on top, as if nothing of it hid.
    """

    def seconds(step: int, unshaped: float, sent: float) -> float:
        if entry.uneven:
            return unshaped + sent / workers / link_of(rate).bytes_per_second
        return step * tuned.step_seconds

    points = [(p[0], seconds(*p[:3]), *p[2:]) for p in record["points"]]
    whole = seconds(record["steps"], record["seconds"], record["bytes_sent"])
    return {"points": points, "rate": rate, "seconds": whole}
