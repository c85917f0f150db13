"""Ways to train, as the lab sees them: a loop that is the same for all, and what each does around it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import Optimizer

import relaxcomm


class Contender:
    """One way to train; made anew for every trial, on every rank, with equal parameters.

    The loop is `loss(contender.model, batch).backward()`, `contender.optimizer.step()`,
    `contender.optimizer.zero_grad()`, `contender.after_step()`. The parameters of the module that is given
    stay the ones that are trained: the lab reads them.

    Args:
        model: on the CPU.
        optimizer: over its parameters.
    """

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


class Nothing(Contender):
    """Exchanges nothing: its step time is what no network can be faster than."""


class EveryStep(Contender):
    """Averages all parameters in one message after each step: what a last average costs."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        super().__init__(model, optimizer)
        self._parameters = list(model.parameters())
        self._seconds: list[float] = []

    def after_step(self) -> None:
        dist.barrier()
        begin = time.perf_counter()
        with torch.no_grad():
            flat = parameters_to_vector(self._parameters)
            self.add_up(flat)
            vector_to_parameters(flat / dist.get_world_size(), self._parameters)
        self._seconds.append(time.perf_counter() - begin)

    def add_up(self, flat: Tensor) -> None:
        """Sum over all ranks, in place."""
        dist.all_reduce(flat)

    def communication(self) -> Mapping[str, float]:
        return {"average": statistics.median(self._seconds)}


class Relaxcomm(Contender):
    """relaxcomm, by configuration.

    Args:
        model: on the CPU.
        optimizer: over its parameters.
        process_group: as of `attach`.
        config: as in YAML, such as `{"algorithm": "bsp"}`.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, process_group: Any = None, **config: Any
    ) -> None:
        super().__init__(model, optimizer)
        self.engine = relaxcomm.attach(model, optimizer, config, process_group=process_group)

    def communication(self) -> Mapping[str, float]:
        counts = self.engine.statistics
        return {kind: counts[f"{kind}_communication_seconds"] for kind in ("exposed", "hidden")}

    def note(self) -> str | None:
        return self.engine.choice

    def close(self) -> None:
        self.engine.close()
