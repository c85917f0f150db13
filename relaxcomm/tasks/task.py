"""What a training job needs to know about a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset

from relaxcomm.errors import ConfigError
from relaxcomm.fields.validation import shown


@dataclass(frozen=True, kw_only=True)
class Task:
    """One training job: a model, its optimizer, its data and how to measure it.

    `make(seed, **options) -> Task` builds one on every rank; with the same seed it must build the same
    model and the same data everywhere, since the ranks take their shares of `train_data` themselves.

    Args:
        model: on the CPU; the job moves it to the rank's device.
        optimizer: over the model's parameters; several, such as `[muon, adamw]`, step one after the other.
        train_data: map-style, with a length; the whole of it on every rank.
        loss: mean loss of a batch, a scalar; called as `loss(model, batch)` with the batch on the device: a
            tensor with a row a sample, or a mapping, a named tuple, a tuple or a list of such, in which a
            list has an entry a sample. `data.micro_batch_size` cuts these; anything else stays whole.
        evaluate: measure on held-out data; called as `evaluate(model)` in evaluation mode, without gradients.
        epochs: passes over the training data.
        batch_size: samples a worker and step, unless the configuration says otherwise.
        metric: name of what `evaluate` returns.
        higher_is_better: whether more of it is better.
        scheduler: stepped after every optimizer step; several as a list.
        evaluate_every_steps: optimizer steps between two evaluations.

    Raises: ConfigError for a number that is not positive, and for what a job cannot step or share out.

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
    optimizer: Optimizer | Sequence[Optimizer]
    train_data: Dataset[Any]
    loss: Callable[[nn.Module, Any], torch.Tensor]
    evaluate: Callable[[nn.Module], float]
    epochs: int
    batch_size: int = 32
    metric: str = "accuracy"
    higher_is_better: bool = True
    scheduler: LRScheduler | Sequence[LRScheduler] | None = None
    evaluate_every_steps: int = 50

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "evaluate_every_steps"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"Task.{name} is {value!r}; it must be a whole number of at least 1")
        _check_optimizers(self.optimizers)
        _check_schedulers(self.schedulers)
        if isinstance(self.train_data, DataLoader):
            raise ConfigError(
                "Task.train_data is a DataLoader; give the dataset that it reads (loader.dataset), of which "
                "each worker gets its share, and its batch size as Task.batch_size"
            )

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """One or several."""
        return tuple(self.optimizer) if isinstance(self.optimizer, Sequence) else (self.optimizer,)

    @property
    def schedulers(self) -> tuple[LRScheduler, ...]:
        """None, one or several."""
        if self.scheduler is None:
            return ()
        return tuple(self.scheduler) if isinstance(self.scheduler, Sequence) else (self.scheduler,)


def _check_optimizers(optimizers: Sequence[object]) -> None:
    """Raise ConfigError for what has no step that a job could take."""
    if not optimizers:
        raise ConfigError("Task.optimizer is an empty list; give an optimizer, or several")
    for one in optimizers:
        if not isinstance(one, Optimizer):
            raise ConfigError(
                f"Task.optimizer holds {shown(one)}; give a torch.optim.Optimizer, or a list of several"
            )
        if isinstance(one, LBFGS):
            raise ConfigError(
                "Task.optimizer is LBFGS, which evaluates the loss several times a step; use another, such "
                "as AdamW"
            )


def _check_schedulers(schedulers: Sequence[object]) -> None:
    """Raise ConfigError for what cannot be stepped after every optimizer step, or saved."""
    for one in schedulers:
        if isinstance(one, ReduceLROnPlateau):
            raise ConfigError(
                "Task.scheduler is ReduceLROnPlateau, which is stepped with a measure, not after each "
                "optimizer step; use another, such as CosineAnnealingLR, or train in a script, by "
                "relaxcomm.attach, and step it there with a measure that is the same on all ranks"
            )
        if not all(callable(getattr(one, name, None)) for name in ("step", "state_dict", "load_state_dict")):
            raise ConfigError(
                f"Task.scheduler holds {shown(one)}; give one of torch.optim.lr_scheduler, or several as a "
                "list"
            )
