"""Local SGD with adaptive batch sizes."""

from __future__ import annotations

from typing import Literal

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Controller, Moments, Rate, Steps
from relaxcomm.primitives import (
    all_reduce,
    count_sketch,
    every,
    gradients,
    identity,
    norm_test,
    observe,
    parameters,
    sample_norm_test,
    while_below,
)


def adaptive_local_sgd(
    *,
    steps: Steps = 16,
    tolerance: Rate = 0.8,
    estimator: Literal["workers", "samples"] = "workers",
    max_batch_size: Steps,
    sketch_size: Steps | None = 1024,
    moments: Moments = (),
) -> Algorithm:
    """Local SGD whose batch grows when the gradients have become too noisy for it.

    After each `steps` local steps the parameters are averaged, `w <- (1/N) sum_n w_n`, and the norm
    test `E ||grad_B - grad||^2 <= tolerance^2 ||grad||^2` is made; where it fails, the batch grows to
    the size that would pass. It never shrinks, and at `max_batch_size` the test ends. The batches
    come from `engine.loader`; steps get fewer as they grow, so index learning-rate schedules by
    `engine.statistics["samples"]`.

    Args:
        steps: local steps from one average to the next, in optimizer steps.
        tolerance: of the test; it does not carry over from one estimator to the other.
        estimator: "workers" compares the workers' gradients, which costs one all-reduce of their sketches an
            average; "samples" compares the micro-batches that each worker accumulates, which costs a
            scalar and needs at least two of them a step.
        max_batch_size: samples a worker and step.
        sketch_size: entries of a bucket's sketch, from which the mean gradient's norm is read with a relative
            deviation of `sqrt(2 / sketch_size)`; None for the gradients themselves.
        moments: what the optimizers keep that is averaged with the parameters, in full precision, such as
            "exp_avg" and "exp_avg_sq" of Adam, or "momentum_buffer" of SGD; nothing unless given.

    Returns: the algorithm.

    Example:
        >>> from relaxcomm import rehearse
        >>> from relaxcomm_algorithms.adaptive_local_sgd import adaptive_local_sgd
        >>> from relaxcomm_algorithms.local_sgd import local_sgd
        >>> growing = adaptive_local_sgd(steps=4, tolerance=0.25, estimator="samples", max_batch_size=32)
        >>> [rehearse(algorithm, epochs=6).exchanges for algorithm in (local_sgd(steps=4), growing)]
        [6, 2]

    Reference: Lau et al., "Communication-Efficient Adaptive Batch Size Strategies for Distributed
        Local Gradient Methods", arXiv 2406.13936.

    Differs from the paper: the mean gradient is read from a sketch, unless `sketch_size` is None.
    """
    averaging = Rule(trigger=every(steps=steps), payload=parameters(), exchange=all_reduce())
    rules = averaging.with_moments(moments)
    test: Controller
    if estimator == "samples":
        test = sample_norm_test(rule=0, tolerance=tolerance, max_batch_size=max_batch_size)
    else:
        test = norm_test(rule=len(rules), tolerance=tolerance, max_batch_size=max_batch_size)
        testing = Rule(
            trigger=while_below(trigger=every(steps=steps), value="batch_size", limit=max_batch_size),
            payload=gradients(),
            compressor=identity() if sketch_size is None else count_sketch(size=sketch_size),
            exchange=all_reduce(),
            outer=observe(),
        )
        rules = (*rules, testing)
    return Algorithm(rules, name="adaptive_local_sgd", controllers=(test,))
