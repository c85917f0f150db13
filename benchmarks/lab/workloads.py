"""What is trained in the lab, on which batches, and when it is good enough."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch.utils.data import default_collate

from relaxcomm import Task
from relaxcomm.tasks import charlm, digits, glyphs


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training job of the lab.

    Args:
        make: the task of a seed and a learning rate.
        batch_size: samples a worker and step.
        every: optimizer steps between two evaluations.
        target: held-out quality that counts as reached, in the task's own measure.
        steps: optimizer steps of a trial.
        learning_rates: to try.
        higher_is_better: of the quality.
    """

    make: Callable[..., Task]
    batch_size: int
    every: int
    target: float
    steps: int
    learning_rates: tuple[float, ...]
    higher_is_better: bool = True


WORKLOADS = {
    "digits": Workload(
        make=digits.make,
        batch_size=32,
        every=4,
        target=0.97,
        steps=240,
        learning_rates=(0.05, 0.1, 0.2),
    ),
    "charlm": Workload(
        make=partial(charlm.make, context=32),
        batch_size=8,
        every=8,
        target=3.4,
        steps=360,
        higher_is_better=False,
        learning_rates=(0.0005, 0.001, 0.002),
    ),
    "glyphs": Workload(
        make=partial(glyphs.make, channels=8, hidden=3072),
        batch_size=32,
        every=8,
        target=0.5,
        steps=128,
        learning_rates=(0.025, 0.05, 0.1),
    ),
}


@lru_cache(maxsize=4)
def _made(workload: str, seed: int, options: tuple[tuple[str, Any], ...]) -> Task:
    return WORKLOADS[workload].make(seed, **dict(options))


def task_of(workload: str, seed: int, learning_rate: float, options: Mapping[str, Any]) -> Task:
    """A fresh task; drawing its data is done once."""
    task = copy.deepcopy(_made(workload, seed, tuple(sorted(options.items()))))
    for group in task.optimizer.param_groups:
        group["lr"] = learning_rate
    return task


class Batches:
    """A rank's batches: each epoch a new shuffle, the same for all contenders, ranks taking turns in it.

    The samples are stacked once, so that loading costs an index operation a step.

    Args:
        task: whose training data.
        batch_size: samples a batch.
        rank, world_size: which share.
        seed: of the shuffles.
    """

    def __init__(self, task: Task, batch_size: int, rank: int, world_size: int, seed: int) -> None:
        data: Any = task.train_data
        samples = default_collate([data[index] for index in range(len(data))])
        self._parts = samples if isinstance(samples, list) else [samples]
        self._single = not isinstance(samples, list)
        self._share = (batch_size, rank, world_size, seed)

    def __iter__(self) -> Iterator[Any]:
        """Batches without end."""
        batch_size, rank, world_size, seed = self._share
        epoch = 0
        while True:
            generator = torch.Generator().manual_seed(seed * 10_007 + epoch)
            order = torch.randperm(len(self._parts[0]), generator=generator)[rank::world_size]
            for indices in order.split(batch_size):
                if len(indices) == batch_size:
                    batch = [part[indices] for part in self._parts]
                    yield batch[0] if self._single else batch
            epoch += 1
