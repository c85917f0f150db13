"""Controllers: what is learnt from a rule's exchanges becomes a named value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.errors import UsageError
from relaxcomm.frozen import Index, Rate, Steps, frozen
from relaxcomm.protocol import Context, Controller, Seen

BATCH_SIZE = "batch_size"


def _grown(cx: Context, needed: float, most: int | None) -> Mapping[str, float]:
    """The batch size, never lowered and never above `most`."""
    size = max(cx.values[BATCH_SIZE], math.ceil(needed))
    return {BATCH_SIZE: size if most is None else min(size, max(most, cx.values[BATCH_SIZE]))}


@frozen
class norm_test(Controller):
    """Grow the batch until the workers' gradients agree well enough.

    With M workers, their gradients g_m at a batch of b samples each, and the mean gradient G:
    `T = b / (M - 1) sum_m ||g_m - G||^2 / (M tolerance^2 ||G||^2)`, `b <- max(b, ceil(T))`.
    The numerator's bracket is unbiased for the trace of the gradients' covariance where the workers'
    parameters agree. It is computed from `sum_m ||g_m||^2` and `sum_m <g_m, C(G)> = M <G, C(G)>`, so the
    rule's compressor C may be any that is unbiased, such as `count_sketch`. It writes the value `batch_size`.

    Args:
        rule: index of the rule that averages the gradients.
        tolerance: of the test, positive; 0.8 to 0.9 is usual. It does not carry over to other estimators.
        max_batch_size: samples a worker, or None for no limit.

    Example:
        >>> norm_test(rule=1, tolerance=0.8)
        norm_test(rule=1, tolerance=0.8)

    Reference: Lau et al., "Communication-Efficient Adaptive Batch Size Strategies for Distributed
        Local Gradient Methods", arXiv 2406.13936.
    """

    rule: Index
    tolerance: Rate
    max_batch_size: Steps | None = None

    needs: ClassVar[frozenset[str]] = frozenset({BATCH_SIZE})
    needs_local: ClassVar[bool] = True

    def observe(self, cx: Context, seen: Seen) -> Tensor:
        assert seen.local is not None, "the legality check lets only rules of gradients through"
        squares = torch.linalg.vector_norm(seen.local, dtype=torch.float64).square()
        return torch.stack([squares, torch.dot(seen.local.double(), seen.result.double())])

    def decide(self, cx: Context, total: Tensor) -> Mapping[str, float]:
        squares, mean = total.tolist()  # sums over the workers
        workers = cx.membership.world_size
        if workers == 1 or mean <= 0:
            return {}
        apart = max(0.0, squares - mean)
        needed = cx.values[BATCH_SIZE] / (workers - 1) * apart / (self.tolerance**2 * mean)
        return _grown(cx, needed, self.max_batch_size)


@frozen
class sample_norm_test(Controller):
    """Grow the batch until the gradients within each worker's batch agree well enough.

    A step's J accumulated micro-batches, of b / J samples each, are the samples of the variance:
    with their gradients g_j and mean G, `T = (b / J) sum_j ||g_j - G||^2 / (J - 1) / (tolerance^2
    ||G||^2)`, averaged over the workers above and below the bar; `b <- max(b, ceil(T))`. It writes the
    value `batch_size`.

    Args:
        rule: index of the rule at whose exchanges the test is made.
        tolerance: of the test, positive; 0.15 to 0.3 is usual.
        max_batch_size: samples a worker, or None for no limit.

    Raises: UsageError for a step of fewer than two micro-batches.

    Example:
        >>> sample_norm_test(rule=0, tolerance=0.25)
        sample_norm_test(rule=0, tolerance=0.25)

    Reference: Lau et al., "Adaptive Batch Size Schedules for Distributed Training of Language Models",
        arXiv 2412.21124.

    Differs from the paper: micro-batches stand for single samples.
    """

    rule: Index
    tolerance: Rate
    max_batch_size: Steps | None = None

    needs: ClassVar[frozenset[str]] = frozenset({BATCH_SIZE})
    needs_micro_gradients: ClassVar[bool] = True

    def observe(self, cx: Context, seen: Seen) -> Tensor:
        micro = seen.micro
        assert micro is not None
        if seen.unit:  # the numbers are of the whole model, so they count once
            return torch.zeros(2, dtype=torch.float64)
        if micro.count < 2:
            raise UsageError(
                f"sample_norm_test needs at least 2 micro-batches a step, got {micro.count}; run all but the "
                "last backward of a step under engine.no_sync(), or use engine.micro_batches(batch, size)"
            )
        # In units of the sum of the micro-gradients, which is what `.grad` holds.
        variance = micro.count / (micro.count - 1) * (micro.squares - micro.squared_norm / micro.count)
        return torch.tensor([variance, micro.squared_norm], dtype=torch.float64)

    def decide(self, cx: Context, total: Tensor) -> Mapping[str, float]:
        variance, mean = total.tolist()
        if not mean:
            return {}
        return _grown(cx, cx.values[BATCH_SIZE] * variance / (self.tolerance**2 * mean), self.max_batch_size)
