"""The real training of a small task on many simulated workers, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import nn

from relaxcomm.config import Config, load_values
from relaxcomm.config.origin import Origin
from relaxcomm.network import InProcessGroup, simulate
from relaxcomm.network.timeline import Times
from relaxcomm.planner.planned_network import PlannedNetwork, coding_seconds
from relaxcomm.planner.priced_plan import PricedPlan
from relaxcomm.planner.scenario import Scenario, StepTimes
from relaxcomm.tasks.task import Task
from relaxcomm.tasks.task_loader import TaskFactory
from relaxcomm.tensors.items import Item
from relaxcomm.training.results import RankRecord, Result, merge
from relaxcomm.training.stopwatch import Stopwatch
from relaxcomm.training.training_run import Run

_CPU = torch.device("cpu")
_EVALUATIONS = 20  # of a run, at least
_DRAWN = 4096  # steps whose times are drawn; later ones come again


def train_simulated(config: Config, factory: TaskFactory, scenario: Scenario) -> Result:
    """Train a task on simulated workers: its seconds are those of a replay of the same scenario.

    Workers are threads of this process. Each computes for the time of a step, in whose backward its gradients
    become ready one after the other, and codes and sends at the prices of the plan; evaluations take no time,
    though all workers meet there.

    Args:
        config: of the job, its workers those of the scenario.
        factory: makes the task.
        scenario: on what.

    Returns: of all ranks together, in virtual seconds.

    Raises: what training raises.

    Example:
        >>> from relaxcomm import Link
        >>> from relaxcomm.config import load
        >>> from relaxcomm.planner.links import OwnLinks
        >>> from relaxcomm.tasks.task_loader import find_task
        >>> config = load({"algorithm": "local_sgd", "workers": 8, "task": {"digits": {"epochs": 1}}})
        >>> scenario = Scenario(8, StepTimes(0.1), OwnLinks(Link(bytes_per_second=12.5e6)))
        >>> result = train_simulated(config, find_task(config.task), scenario)
        >>> result.steps, round(result.seconds, 1)  # the last average alone takes more than 0.2 s
        (6, 0.8)
    """
    tasks = _tasks(factory, config.seed, scenario.workers)
    items = [Item(name, one) for name, one in tasks[0].model.named_parameters() if one.requires_grad]
    plan = PricedPlan(config.algorithm, items, scenario)
    times = scenario.step_times.draw(_DRAWN, scenario.workers, scenario.seed)
    coding = coding_seconds(plan)
    torch.manual_seed(config.seed)

    def rank(group: InProcessGroup) -> list[RankRecord]:
        pace = Pace(group, scenario.step_times, times[:, group.rank()])
        return SimulatedRun(config, tasks[group.rank()], pace, coding).run()

    records = simulate(rank, scenario.workers, link=PlannedNetwork(plan))[0]
    return merge(
        records,
        algorithm=config.algorithm.name,
        composition=repr(config.algorithm),
        task=factory.name,
        metric=tasks[0].metric,
        higher_is_better=tasks[0].higher_is_better,
        device=_CPU.type,
        seed=config.seed,
        link=scenario.links.slowest.words,
    )


def _tasks(factory: TaskFactory, seed: int, workers: int) -> list[Task]:
    """A task for each rank; they share the data, and the measure of the model that all evaluate."""
    first = factory.build(seed)
    data, evaluate = first.train_data, _once_for_all(first.evaluate)
    made = [first, *(factory.build(seed) for _ in range(workers - 1))]
    return [replace(one, train_data=data, evaluate=evaluate()) for one in made]


def _once_for_all(evaluate: Callable[[nn.Module], float]) -> Callable[[], Callable[[nn.Module], float]]:
    """Makes a function for each rank, of which the first that is called measures."""
    measured: list[float] = []

    def for_rank() -> Callable[[nn.Module], float]:
        numbers = count()

        def measure(model: nn.Module) -> float:
            number = next(numbers)
            if number == len(measured):
                measured.append(evaluate(model))
            return measured[number]

        return measure

    return for_rank


class Pace:
    """How a rank computes in virtual time.

    Args:
        group: the rank.
        step_times: the share of backward.
        seconds: of each step; they come again.
    """

    def __init__(self, group: InProcessGroup, step_times: StepTimes, seconds: Times) -> None:
        self.group, self._backward, self._seconds = group, step_times.backward, seconds
        self._now = 0.0

    def follow(self, model: nn.Module) -> None:
        """Let the gradients become ready one after the other."""
        ready = [one for one in model.parameters() if one.requires_grad]
        numel = sum(one.numel() for one in ready)
        for one in ready:
            one.register_hook(  # type: ignore[no-untyped-call]  # torch does not annotate it
                self._hook(self._backward * one.numel() / numel)
            )

    def _hook(self, share: float) -> Callable[[torch.Tensor], None]:
        return lambda gradient: self.group.sleep(share * self._now)

    def forward(self, step: int, share: float) -> None:
        """Compute the forward of a part of a step's batch."""
        self._now = share * float(self._seconds[step % len(self._seconds)])
        self.group.sleep((1 - self._backward) * self._now)


class SimulatedRun(Run):
    """A training run on one of the ranks of a simulation.

    Args:
        config: the configuration.
        task: what is trained.
        pace: how this rank computes.
        coding: what coding takes, by label.
    """

    def __init__(self, config: Config, task: Task, pace: Pace, coding: Callable[..., float]) -> None:
        self._pace = pace
        pace.follow(task.model)
        clock = Stopwatch(_CPU, pace.group.time)
        super().__init__(config, task, _CPU, pace.group.transport(coding), clock)
        often = max(1, min(task.evaluate_every_steps, self.progress.steps // _EVALUATIONS))
        self.task = replace(task, evaluate_every_steps=often)

    def _train_part(self, part: Any, share: float, total: torch.Tensor) -> None:
        self._pace.forward(self.progress.step, share)
        super()._train_part(part, share, total)

    @contextmanager
    def _pause(self) -> Iterator[None]:
        with self._pace.group.stopped_clock(), super()._pause():
            yield


def simulated_config(config: Config, algorithm: object, scenario: Scenario) -> Config:
    """A job's configuration for a pilot run, which leaves nothing behind."""
    left_out: dict[str, None] = dict.fromkeys(("checkpoint", "metrics", "output"))
    values = {**dict(config), "algorithm": algorithm, **left_out}
    values |= {name: getattr(scenario, name) for name in ("workers", "topology", "seed")}
    if algorithm != config.algorithm:
        values["phases"] = ()
    values.pop("membership")
    return load_values(values, Origin(f"training with seed {scenario.seed}"))
