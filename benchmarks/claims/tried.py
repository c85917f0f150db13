"""Runs a claim's trials: the learning rate of each chosen on a seed of its own, then the seeds that count."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from benchmarks.claims.settings import SETTINGS
from benchmarks.claims.training import Run, Trial, train

TUNING_SEED = 100


@dataclass(frozen=True)
class Tried:
    """A trial's outcome.

    Args:
        trial: that was tried.
        rate: that was chosen.
        tuning: quality by learning rate, on the tuning seed.
        runs: of the seeds that count.
    """

    trial: Trial
    rate: float
    tuning: Mapping[float, float]
    runs: tuple[Mapping[str, float], ...]

    def __getitem__(self, key: str) -> float:
        """The median over the seeds."""
        return statistics.median(run[key] for run in self.runs)

    def as_json(self) -> dict[str, Any]:
        """All that was measured."""
        algorithm = self.trial.algorithm
        return {
            "algorithm": algorithm,
            "rate": self.rate,
            "tuning": dict(self.tuning),
            "runs": list(self.runs),
        }


def try_all(pool: Executor, setting: str, trials: Iterable[Trial], seeds: int) -> dict[str, Tried]:
    """Every trial by its key; equal ones are run once."""
    unique = {trial.key: trial for trial in trials}
    grid = {key: SETTINGS[setting].rates[one.kind(SETTINGS[setting])] for key, one in unique.items()}
    tuning = {
        (key, rate): pool.submit(train, Run(setting, unique[key], rate, TUNING_SEED))
        for key, rates in grid.items()
        for rate in rates
    }
    found = {
        key: {rate: tuning[key, rate].result()["quality"] for rate in rates} for key, rates in grid.items()
    }
    chosen = {key: max(by_rate, key=lambda rate: by_rate[rate]) for key, by_rate in found.items()}
    final = {
        key: [pool.submit(train, Run(setting, unique[key], rate, seed)) for seed in range(seeds)]
        for key, rate in chosen.items()
    }
    return {
        key: Tried(unique[key], chosen[key], found[key], tuple(run.result() for run in runs))
        for key, runs in final.items()
    }
