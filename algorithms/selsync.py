"""SelSync: exchange only when the gradients change."""

from __future__ import annotations

from typing import Literal

from relaxcomm import (
    Agreement,
    Algorithm,
    Rule,
    Share,
    Steps,
    Threshold,
    all_reduce,
    gradients,
    parameters,
    relative_gradient_change,
)


def selsync(
    threshold: Threshold = 0.25,
    window_steps: Steps = 25,
    smoothing: Share | None = None,
    agree: Agreement = "any",
    aggregate: Literal["parameters", "gradients"] = "parameters",
) -> Algorithm:
    """Average the parameters only in steps in which some worker's gradients change.

    `D_n = |E_i - E_(i-1)| / E_(i-1)` with `E` the moving average of `||g_n||^2`. Each worker takes its
    local step; where `D_n >= threshold` on any of them, all average: `w <- (1/N) sum_n w_n`.
    `threshold=0` averages in every step. `engine.statistics["lssr"]` is the share of local steps.

    Args:
        threshold: the least relative change that exchanges; the paper uses 0.25 to 0.5.
        window_steps: number of first steps that always exchange, in optimizer steps.
        smoothing: of the moving average, in (0, 1]; None for N / 100, at most 1, with N workers.
        agree: whose vote is enough: "any" worker's, "all", a "majority", or a least fraction.
        aggregate: "parameters", or "gradients", which does worse in the paper, since replicas have
            parted when the mean gradient is applied.

    Returns: the algorithm.

    Example:
        >>> selsync(threshold=0.3).rules[0].trigger
        relative_gradient_change(threshold=0.3)

    Reference: Tyagi and Swany, "Accelerating Distributed ML Training via Selective Synchronization",
        IEEE CLUSTER 2023.

    Differs from the paper's code: parameters are averaged after the optimizer's step, as the paper
        says, and the norm is that of all gradients.
    """
    trigger = relative_gradient_change(
        threshold=threshold, window_steps=window_steps, smoothing=smoothing, agree=agree
    )
    payload = parameters() if aggregate == "parameters" else gradients()
    return Algorithm((Rule(trigger=trigger, payload=payload, exchange=all_reduce()),), name="selsync")
