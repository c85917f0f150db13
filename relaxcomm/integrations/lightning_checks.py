"""What Lightning's loop cannot honour is refused."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from torch.optim import Optimizer

from relaxcomm.config import Config
from relaxcomm.errors import CompositionError, ConfigError


def check_optimizers(optimizers: Sequence[Optimizer]) -> None:
    """Refuse optimizers that call forward and backward themselves, several times a step.

    Raises: CompositionError.
    """
    for optimizer in optimizers:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise CompositionError(
                f"{type(optimizer).__name__} runs forward and backward several times in a step, which the "
                "engine cannot follow; use an optimizer that steps without a closure"
            )


def check_config(settings: Config) -> None:
    """Refuse what Lightning's loop has no room for.

    Raises: ConfigError, CompositionError.
    """
    for algorithm in settings.algorithms:
        if algorithm.chooses_batches:
            raise CompositionError(
                f"{algorithm.name} chooses the batches by engine.loader, and Lightning counts a loader's "
                "batches before it begins; name another algorithm, or attach in a loop of your own"
            )
    if settings.membership.elastic:
        raise ConfigError(
            "membership.elastic: Lightning's own collectives wait for ranks that are lost; leave it out, and "
            "have torchrun --max-restarts start all of them again, with fit(ckpt_path='last')"
        )
