"""What a training job needs to know about a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from relaxcomm.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Task:
    """One training job: a model, its optimizer, its data and how to measure it.

    `make(seed, **options) -> Task` builds one on every rank; with the same seed it must build the same
    model and the same data everywhere, since the ranks take their shares of `train_data` themselves.

    Args:
        model: on the CPU; the job moves it to the rank's device.
        optimizer: over the model's parameters.
        train_data: map-style, with a length; the whole of it on every rank.
        loss: mean loss of a batch, a scalar; called as `loss(model, batch)` with the batch on the device: a
            tensor with a row a sample, or a mapping, a named tuple, a tuple or a list of such, in which a
            list has an entry a sample. `data.micro_batch_size` cuts these; anything else stays whole.
        evaluate: measure on held-out data; called as `evaluate(model)` in evaluation mode, without gradients.
        epochs: passes over the training data.
        batch_size: samples a worker and step, unless the configuration says otherwise.
        metric: name of what `evaluate` returns.
        higher_is_better: whether more of it is better.
        scheduler: stepped after every optimizer step.
        evaluate_every_steps: optimizer steps between two evaluations.

    Raises: ConfigError for a number that is not positive.

    Example:
        >>> import torch
        >>> from relaxcomm import Task
        >>> def make(seed):
        ...     model = torch.nn.Linear(1, 1, bias=False)
        ...     return Task(
        ...         model=model,
        ...         optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        ...         train_data=torch.utils.data.TensorDataset(torch.ones(8, 1)),
        ...         loss=lambda model, batch: (model(batch[0]) - 1).square().mean(),
        ...         evaluate=lambda model: float(model.weight),
        ...         epochs=1,
        ...     )
        >>> len(make(seed=0).train_data), make(seed=0).batch_size
        (8, 32)
    """

    model: nn.Module
    optimizer: Optimizer
    train_data: Dataset[Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    evaluate: Callable[[nn.Module], float]
    epochs: int
    batch_size: int = 32
    metric: str = "accuracy"
    higher_is_better: bool = True
    scheduler: LRScheduler | None = None
    evaluate_every_steps: int = 50

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "evaluate_every_steps"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"Task.{name} is {value!r}; it must be a whole number of at least 1")
