"""What watches a rule and writes named values."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from relaxcomm.fields.frozen import Index, stated
from relaxcomm.roles.context import Context, Primitive

BATCH_SIZE = "batch_size"
"""The value that `engine.loader` makes and follows."""


@dataclass(frozen=True)
class MicroGradients:
    """The gradients that a step accumulates, one for each backward: `(b_j / b) g_j`, of b_j samples.

    Args:
        count: J, the number of micro-batches.
        samples: b, those of all micro-batches; None if that is not known of each.
        squares: `sum_j (b_j / b) ||g_j||^2`.
        squared_norm: `||G||^2`, with `G = sum_j (b_j / b) g_j`.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import MicroGradients
        >>> first, second = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])  # of 4 samples each
        >>> mean = (first + second) / 2
        >>> squares = float((first @ first + second @ second) / 2)
        >>> micro = MicroGradients(count=2, samples=8, squares=squares, squared_norm=float(mean @ mean))
        >>> micro.samples * (micro.squares - micro.squared_norm)  # sum of b_j ||g_j - G||^2
        4.0
    """

    count: int
    samples: int | None
    squares: float
    squared_norm: float


@dataclass(frozen=True)
class ExchangedBucket:
    """What a controller sees of one bucket after an exchange.

    Args:
        unit: index of the bucket.
        local: what this worker put in, `[numel]`, for rules of gradients; None otherwise.
        result: the combined result, `[numel]`.
        micro: the step's micro-gradients over all parameters, for controllers that need them.
        samples: of this worker's batches from `engine.loader` in this step; None without that loader.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import ExchangedBucket
        >>> local, result = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 0.0])
        >>> seen = ExchangedBucket(unit=0, local=local, result=result, samples=8)
        >>> float((seen.local - seen.result).square().sum())
        16.0
    """

    unit: int
    local: Tensor | None
    result: Tensor
    micro: MicroGradients | None = None
    samples: int | None = None


@stated
class ControllerFacts:
    """What a controller declares.

    Args:
        needs: values that it looks at: `batch_size`, or what a controller gives in `init_values`.
        needs_local: it looks at what the worker put in, to compare it with the result, so it must watch a
            rule of gradients whose result is their mean, of full size.
        needs_micro_gradients: it looks at the gradients that a step accumulates, one by one.

    Example:
        >>> from relaxcomm.primitives import norm_test
        >>> norm_test.facts.needs_local, sorted(norm_test.facts.needs)
        (True, ['batch_size'])
    """

    needs: frozenset[str]
    needs_local: bool
    needs_micro_gradients: bool


class Controller(Primitive):
    """Watches one rule and writes named values, the same on all ranks.

    Triggers and controllers that name a value in `needs` read it in `cx.values`. `engine.loader` makes
    `batch_size`, and follows it; a controller gives every other value in `init_values` first.

    Example:
        >>> import torch
        >>> from relaxcomm import Algorithm, Rule, rehearse
        >>> from relaxcomm.plugin import Controller, frozen
        >>> from relaxcomm.primitives import all_reduce, gradients, norm_test
        >>> @frozen
        ... class warmup(Controller):
        ...     rule: int = 0
        ...     facts = norm_test.facts
        ...     def observe(self, cx, seen):
        ...         return torch.zeros(1)
        ...     def decide(self, cx, total):
        ...         return {"batch_size": 8 if cx.step < 4 else 16}
        >>> rule = Rule(payload=gradients(), exchange=all_reduce())
        >>> growing = Algorithm((rule,), name="growing", controllers=(warmup(),))
        >>> [rehearse(growing, epochs=epochs).exchanges for epochs in (1, 2, 3)]
        [4, 7, 9]
    """

    role: ClassVar[str] = "controller"
    declares: ClassVar[type[ControllerFacts]] = ControllerFacts
    rule: Index

    @property
    @abstractmethod
    def facts(self) -> ControllerFacts:
        """What it declares."""

    def init_values(self) -> Mapping[str, float]:
        """The values that it writes, before its first decision; `batch_size` is not among them."""
        return {}

    @abstractmethod
    def observe(self, cx: Context, seen: ExchangedBucket) -> Tensor:
        """A few numbers of one bucket, `[k]`; they are added up over buckets and workers."""

    @abstractmethod
    def decide(self, cx: Context, total: Tensor) -> Mapping[str, float]:
        """New values from the numbers' sum; a value that is left out stays."""
