"""Decoupled DiLoCo."""

from __future__ import annotations

from typing import Literal

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Compressor, Fraction, Index, Quorum, Rate, Steps, Threshold
from relaxcomm.primitives import deltas, every, identity, nesterov, quorum_average


def decoupled_diloco(
    *,
    quorum: Quorum = None,
    grace_seconds: Threshold = 5.0,
    steps: Steps = 500,
    lr: Rate = 0.7,
    momentum: Fraction = 0.9,
    fragments: Steps = 1,
    delay: Index | Literal["unbounded"] = "unbounded",
    compressor: Compressor | None = None,
) -> Algorithm:
    """DiLoCo in which no worker waits: the model moves when a quorum has reported, weighted by samples.

    Every `steps` local steps worker n reports what it has moved, `delta_n = x0_n - x_n`, and trains on.
    When `quorum` workers have, and `grace_seconds` have passed in which others may:
    `delta = sum_n s_n delta_n / sum_n s_n`, with s_n samples since worker n's last report,
    `m <- momentum m + delta`, `x0 <- x0 - lr (delta + momentum m)`, and those who have reported go on from
    x0 with what they have learned meanwhile. A report that comes later is in the next move. Where the data
    come from another loader than `engine.loader`, a step counts as one sample. With all workers, `delay=0`
    and as many samples each it equals `diloco`.

    Args:
        quorum: number of workers; more than half of them unless given. Fewer move the model when the others
            are silent for long, see `quorum_average`.
        grace_seconds: how long others are waited for then, 0 or more. It holds up no worker, unless
            `delay` is a number.
        steps: local steps from one report to the next, in optimizer steps.
        lr: outer learning rate.
        momentum: outer momentum, in [0, 1).
        fragments: parts of the model that take turns, at most `steps`; 1 if `delay` is a number.
        delay: how late the moved model is taken in, in optimizer steps, or "unbounded": when it has come, and
            until then nothing more is reported.
        compressor: of the reports; full precision unless given. Each rank's part is coded on its own.

    Returns: the algorithm.

    Raises: CompositionError for more fragments than steps, or several with a number for `delay`;
        TopologyError, when it is attached, for a quorum of more workers than there are.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.decoupled_diloco import decoupled_diloco
        >>> trajectory(decoupled_diloco(steps=2), [[1.0, 3.0]] * 4)
        tensor([[ 1.0000,  3.0000],
                [ 2.0000,  6.0000],
                [ 6.3200,  8.3200],
                [ 7.3200, 11.3200]])

    Reference: Douillard et al., "Decoupled DiLoCo for Resilient Distributed Pre-training", arXiv 2604.21428.

    Differs from the paper: the ranks are the synchroniser, each of its part; weights are samples alone, the
        grace is constant, and the mean is taken of entries, without a radius of its own.
    """
    rule = Rule(
        trigger=every(steps=steps),
        payload=deltas(),
        compressor=compressor or identity(),
        exchange=quorum_average(quorum=quorum, grace_seconds=grace_seconds),
        delay=delay,
        outer=nesterov(lr=lr, momentum=momentum),
    )
    return Algorithm(rule.in_fragments(fragments), name="decoupled_diloco")
