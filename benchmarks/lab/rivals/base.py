"""What a rival looks like to the lab."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer


class Contender:
    """One way to train; made anew for every trial, on every rank, with equal parameters."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model: Callable[..., Any] = model
        self.optimizer: Any = optimizer

    def after_step(self) -> None:
        """Called after `zero_grad()`."""

    def communication(self) -> Mapping[str, float]:
        """Seconds that communication kept the loop waiting (`exposed`) or did not (`hidden`), if known."""
        return {}

    def note(self) -> str | None:
        """What the contender has to say of what it did, in one line."""
        return None

    def close(self) -> None:
        """Drain, and free groups, hooks and threads."""
