"""Where claims are tried: a task, its workers and who holds which data.

A setting can tell something about synchronising only if workers that never exchange anything end up
clearly worse than `bsp`; both stand beside every trial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from relaxcomm import Task
from relaxcomm.tasks import charlm, digits, glyphs


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A training job.

    Args:
        about: in words, for the table.
        make: the task of a seed.
        workers: simulated in one process.
        batch_size: samples a worker and step.
        epochs: passes over the data.
        partition: who holds which data, unless a trial says otherwise.
        margin: differences in quality below this are noise.
        target: quality that counts as reached.
        rates: learning rates to try, by the kind of optimizer.
        optimizer: the kind that a trial has unless it names one.
    """

    about: str
    make: Callable[[int], Task]
    workers: int
    batch_size: int
    epochs: int
    partition: str = "iid"
    margin: float
    target: float
    rates: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    optimizer: str = "momentum"

    def as_json(self) -> dict[str, Any]:
        """What a result file says of it."""
        return {name: value for name, value in vars(self).items() if name != "make"}


SGD_RATES = {
    "momentum": (0.025, 0.05, 0.1, 0.2),
    "plain": (0.1, 0.2, 0.4, 0.8),
    # Where each entry moves by the learning rate.
    "signs": (5e-4, 1e-3, 2e-3, 4e-3),
}
ADAM_RATES = {
    "adam": (1e-3, 2e-3, 4e-3),
    "momentum": (0.05, 0.1, 0.2),
    "plain": (0.25, 0.5, 1.0),
    "signs": (5e-4, 1e-3, 2e-3),
}

_small_digits = partial(digits.make, dropout=0.0, hidden=(128, 64))

SETTINGS = {
    "digits": Setting(
        about="digits, 16 workers",
        make=_small_digits,
        workers=16,
        batch_size=8,
        epochs=16,
        margin=0.01,
        target=0.95,
        rates=SGD_RATES,
    ),
    "digits by label": Setting(
        about="digits, 8 workers, each with the images of one or two digits",
        make=_small_digits,
        workers=8,
        batch_size=16,
        epochs=16,
        partition="by_label",
        margin=0.01,
        target=0.95,
        rates=SGD_RATES,
    ),
    "charlm": Setting(
        about="charlm (width 64, 32 characters), 4 workers",
        make=partial(charlm.make, context=32, width=64, samples=4096),
        workers=4,
        batch_size=8,
        epochs=3,
        margin=0.03,
        target=-3.3,
        rates=ADAM_RATES,
        optimizer="adam",
    ),
    "glyphs": Setting(
        about="glyphs, 4 workers",
        make=partial(glyphs.make, channels=8),
        workers=4,
        batch_size=32,
        epochs=1,
        margin=0.015,
        target=0.6,
        rates={"momentum": (0.05, 0.1)},
    ),
}


def make_optimizer(kind: str, task: Task, rate: float) -> torch.optim.Optimizer:
    """An optimizer for a task's model."""
    if kind == "adam":
        for group in task.optimizer.param_groups:
            group["lr"] = rate
        return task.optimizer
    momentum = 0.9 if kind == "momentum" else 0.0
    return torch.optim.SGD(task.model.parameters(), lr=rate, momentum=momentum)
