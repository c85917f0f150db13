"""What `relaxcomm plan --train` runs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config import Config
from relaxcomm.errors import ConfigError, RelaxcommError
from relaxcomm.planner.scenario import Scenario
from relaxcomm.system.telling import tell
from relaxcomm.tasks.task_loader import find_task
from relaxcomm.training.pilot import simulated_config, train_simulated
from relaxcomm.training.pilot_statistics import Pilot

_SEEDS = 3
Case = tuple[str, Algorithm, Scenario]


@dataclass(frozen=True)
class Training:
    """What is asked of pilot runs.

    Args:
        seeds: of each algorithm.
        target: quality until which seconds are counted, or None.
        within: seconds after which quality is compared; None for when the first algorithm ends.
    """

    seeds: int
    target: float | None
    within: float | None


def training_of(
    train: bool, seeds: int | None, target: float | None, within: float | None, num_parameters: int | None
) -> Training | None:
    """What the options ask for, None for no training.

    Raises: ConfigError.
    """
    given = {"--seeds": seeds, "--target": target, "--within": within}
    for option, value in given.items():
        if value is not None and not train:
            raise ConfigError(f"{option} is of runs that train; add --train, or leave it out")
    if train and num_parameters is not None:
        raise ConfigError(
            "--train trains the configuration's task, whose model has its own size; leave --parameters out"
        )
    return Training(seeds or _SEEDS, target, within) if train else None


def train_all(
    cases: Iterable[Case], settings: Config, training: Training, failed: dict[str, str]
) -> list[Pilot]:
    """Train with each algorithm, over all seeds; what fails is told in `failed`.

    Raises: ConfigError without a task.
    """
    factory, pilots = find_task(settings.task), []
    for name, algorithm, scenario in cases:
        results, begin = [], time.perf_counter()
        try:
            for seed in range(settings.seed, settings.seed + training.seeds):
                on = replace(scenario, seed=seed)
                results.append(train_simulated(simulated_config(settings, algorithm, on), factory, on))
        except RelaxcommError as error:
            failed[f"{name}, {scenario.workers} workers, training"] = str(error)
            continue
        pilots.append(Pilot(name, scenario.workers, tuple(results)))
        spent = time.perf_counter() - begin
        tell(f"{name}, {scenario.workers} simulated workers, {training.seeds} seeds: {spent:.0f} s")
    return pilots
