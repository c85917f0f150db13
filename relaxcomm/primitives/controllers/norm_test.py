"""Controllers: what is learnt from a rule's exchanges becomes a named value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.errors import UsageError
from relaxcomm.fields.frozen import Index, Rate, Steps, frozen
from relaxcomm.roles import Context, Controller, ControllerFacts, ExchangedBucket
from relaxcomm.roles.controller import BATCH_SIZE


def _grown(cx: Context, needed: float, most: int | None) -> Mapping[str, float]:
    """The batch size, never lowered and never above `most`."""
    size = max(cx.values[BATCH_SIZE], math.ceil(needed))
    return {BATCH_SIZE: size if most is None else min(size, max(most, cx.values[BATCH_SIZE]))}


@frozen
class norm_test(Controller):
    """Grow the batch until the workers' gradients agree well enough.

    With M workers, their gradients g_m, each the mean over the b_m samples that the worker has read for this
    step, and the mean gradient `G = (1/M) sum_m g_m`:
    `S = M / (M - 1) sum_m ||g_m - G||^2 / sum_m (1 / b_m)`, `T = S / (M tolerance^2 ||G||^2)`,
    `b <- max(b, ceil(T))`.
    S is unbiased for the trace s of the covariance of a sample's gradient where the workers' parameters
    agree: g_m has s / b_m of it, so that `E sum_m ||g_m - G||^2 = (1 - 1/M) s sum_m (1 / b_m)`. The sum is
    computed from `sum_m ||g_m||^2` and `sum_m <g_m, C(G)> = M <G, C(G)>`, so the rule's compressor C may be
    any that is unbiased, such as `count_sketch`. It writes the value `batch_size`.

    Args:
        rule: index of the rule that averages the gradients.
        tolerance: of the test, positive; 0.8 to 0.9 is usual. It does not carry over to other estimators.
        max_batch_size: samples a worker, or None for no limit.

    Example:
        >>> from relaxcomm import Algorithm, Rule, rehearse
        >>> from relaxcomm.primitives import all_reduce, gradients, norm_test
        >>> rule = Rule(payload=gradients(), exchange=all_reduce())
        >>> growing = Algorithm((rule,), name="growing", controllers=(norm_test(rule=0, tolerance=0.8),))
        >>> [rehearse(growing, epochs=epochs).exchanges for epochs in (1, 10, 40)]
        [4, 40, 114]

    Reference: Lau et al., "Communication-Efficient Adaptive Batch Size Strategies for Distributed
        Local Gradient Methods", arXiv 2406.13936.
    """

    rule: Index
    tolerance: Rate
    max_batch_size: Steps | None = None

    facts: ClassVar[ControllerFacts] = ControllerFacts(
        needs=frozenset({BATCH_SIZE}),
        needs_local=True,
        needs_micro_gradients=False,
    )

    def observe(self, cx: Context, seen: ExchangedBucket) -> Tensor:
        assert seen.local is not None, "the legality check lets only rules of gradients through"
        assert seen.samples, "check_loader lets no step begin without engine.loader"
        kind = torch.promote_types(seen.local.dtype, torch.float64)
        squares = torch.linalg.vector_norm(seen.local, dtype=kind).square()
        aligned = torch.vdot(seen.local.to(kind), seen.result.to(kind)).real
        # Of each bucket anew, with how many there are: the ratio is the mean of 1 / b_m.
        return torch.stack([squares, aligned, aligned.new_tensor(1 / seen.samples), aligned.new_tensor(1)])

    def decide(self, cx: Context, total: Tensor) -> Mapping[str, float]:
        squares, mean, inverse, count = total.tolist()  # sums over the workers and buckets
        workers = cx.membership.world_size
        if workers == 1 or mean <= 0:
            return {}
        needed = count / inverse / (workers - 1) * (squares - mean) / (self.tolerance**2 * mean)
        return _grown(cx, needed, self.max_batch_size)


@frozen
class sample_norm_test(Controller):
    """Grow the batch until the gradients within each worker's batch agree well enough.

    A step's J accumulated micro-batches, of b_j samples each and `b = sum_j b_j` together, are the samples
    of the variance: with their mean gradients g_j and `G = sum_j (b_j / b) g_j`,
    `S = sum_j b_j ||g_j - G||^2 / (J - 1)`, `T = S / (tolerance^2 ||G||^2)`, averaged over the workers above
    and below the bar; `b <- max(b, ceil(T))`. It writes the value `batch_size`.
    S is unbiased for the trace s of the covariance of a sample's gradient: around the true gradient,
    `E ||g_j||^2 = s / b_j` and `E ||G||^2 = s / b`, so `E sum_j b_j ||g_j - G||^2 = J s - s`. An epoch's last
    batch that is too small for two micro-batches is not tested.

    Args:
        rule: index of the rule at whose exchanges the test is made.
        tolerance: of the test, positive; 0.15 to 0.3 is usual.
        max_batch_size: samples a worker, or None for no limit.

    Raises: UsageError for a step of fewer than two micro-batches, or of a size that is not known.

    Example:
        >>> from relaxcomm import Algorithm, Rule, rehearse
        >>> from relaxcomm.primitives import all_reduce, gradients, sample_norm_test
        >>> rule = Rule(payload=gradients(), exchange=all_reduce())
        >>> test = sample_norm_test(rule=0, tolerance=0.25)
        >>> growing = Algorithm((rule,), name="growing", controllers=(test,))
        >>> [rehearse(growing, epochs=epochs).exchanges for epochs in (1, 2, 3)]
        [2, 3, 4]

    Reference: Lau et al., "Adaptive Batch Size Schedules for Distributed Training of Language Models",
        arXiv 2412.21124.

    Differs from the paper: micro-batches stand for single samples.
    """

    rule: Index
    tolerance: Rate
    max_batch_size: Steps | None = None

    facts: ClassVar[ControllerFacts] = ControllerFacts(
        needs=frozenset({BATCH_SIZE}),
        needs_local=False,
        needs_micro_gradients=True,
    )

    def observe(self, cx: Context, seen: ExchangedBucket) -> Tensor:
        micro = seen.micro
        assert micro is not None
        if micro.samples is None:
            raise UsageError(
                "sample_norm_test has to know how many samples each backward is of; split every batch with "
                "engine.micro_batches(batch, size), or in YAML with data: {micro_batch_size: …}"
            )
        if micro.count < 2 and micro.samples < cx.values[BATCH_SIZE]:
            return torch.zeros(2, dtype=torch.float64)
        if micro.count < 2:
            raise UsageError(
                f"sample_norm_test needs at least 2 micro-batches a step, got {micro.count}; use "
                "engine.micro_batches(batch, size) with a size below the batch's"
            )
        variance = micro.samples / (micro.count - 1) * (micro.squares - micro.squared_norm)
        return torch.tensor([variance, micro.squared_norm], dtype=torch.float64)

    def decide(self, cx: Context, total: Tensor) -> Mapping[str, float]:
        variance, mean = total.tolist()  # each of the whole model, as often as there are buckets
        if not mean:
            return {}
        return _grown(cx, variance / (self.tolerance**2 * mean), self.max_batch_size)
