"""SelSync: exchange only when the gradients change."""

from __future__ import annotations

from typing import Literal

from relaxcomm import Algorithm, CompositionError, Rule
from relaxcomm.plugin import Agreement, Compressor, Index, Moments, Share, Steps, Threshold
from relaxcomm.primitives import (
    deltas,
    exchange_for,
    gradients,
    identity,
    parameters,
    relative_gradient_change,
)


def selsync(
    threshold: Threshold = 0.25,
    window_steps: Steps = 25,
    smoothing: Share = 0.16,
    agree: Agreement = "any",
    aggregate: Literal["parameters", "gradients"] = "parameters",
    compressor: Compressor | None = None,
    *,
    delay: Index = 0,
    vote_delay: Index = 0,
    moments: Moments = (),
) -> Algorithm:
    """Average the parameters only in steps in which some worker's gradients change.

    `D_n = |E_i - E_(i-1)| / E_(i-1)` with `E` the moving average of `||g_n||^2`. Each worker takes its
    local step; where `D_n >= threshold` on any of them, all average: `w <- (1/N) sum_n w_n`.
    `threshold=0` averages in every step. `engine.statistics["lssr"]` is the share of local steps.

    Args:
        threshold: the least relative change that exchanges; the paper uses 0.25 to 0.5.
        window_steps: number of first steps that always exchange, in optimizer steps.
        smoothing: of the moving average, in (0, 1]; see `relative_gradient_change` for what it means
            together with the threshold.
        agree: whose vote is enough: "any" worker's, "all", a "majority", or a least fraction.
        aggregate: "parameters", or "gradients", which does worse in the paper, since replicas have
            parted when the mean gradient is applied.
        compressor: of what is sent; full precision unless given. With one, workers exchange what their
            parameters have moved since the last exchange, since that can be coded with less loss.
        delay: how late the average is taken in, in optimizer steps, 0 or 1, so that communication hides
            behind a step; only with aggregate="parameters".
        vote_delay: how many steps later the votes of a step decide, so that the agreement, one round trip a
            step, hides behind so many steps; the paper waits for it.
        moments: what the optimizers keep that is averaged with the parameters, in full precision, such as
            "momentum_buffer" of SGD; nothing unless given. Only with aggregate="parameters".

    Returns: the algorithm.

    Raises: CompositionError for moments with aggregate="gradients".

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.selsync import selsync
        >>> trajectory(selsync(window_steps=1), [[1.0, 3.0], [1.0, 3.0], [9.0, 3.0]])
        tensor([[ 2.,  2.],
                [ 3.,  5.],
                [10., 10.]])

    Reference: Tyagi and Swany, "Accelerating Distributed ML Training via Selective Synchronization",
        IEEE CLUSTER 2023.

    Differs from the paper: smoothing is 0.16, its N / 100 at its 16 workers, for every number of workers,
        so that a threshold means the same for all of them. From its code: parameters are averaged after
        the optimizer's step, as the paper says, and the norm is that of all gradients.
    """
    if moments and aggregate == "gradients":
        raise CompositionError(
            f"selsync: moments={moments} with aggregate='gradients': workers whose parameters are not "
            "averaged keep moments of their own; use aggregate='parameters', or no moments"
        )
    coder = compressor or identity()
    whole = parameters() if compressor is None else deltas()
    rule = Rule(
        trigger=relative_gradient_change(
            threshold=threshold,
            window_steps=window_steps,
            smoothing=smoothing,
            agree=agree,
            vote_delay=vote_delay,
        ),
        payload=whole if aggregate == "parameters" else gradients(),
        compressor=coder,
        exchange=exchange_for(coder),
        delay=delay,
    )
    return Algorithm(rule.with_moments(moments), name="selsync")
