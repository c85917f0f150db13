"""DiLoCo."""

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Fraction, Moments, Rate, Steps
from relaxcomm.primitives import all_reduce, deltas, every, nesterov


def diloco(
    steps: Steps = 500, lr: Rate = 0.7, momentum: Fraction = 0.9, *, moments: Moments = ()
) -> Algorithm:
    """Long local phases whose mean progress is a pseudo-gradient for Nesterov momentum.

    Every `steps` local steps: `delta = (1/N) sum_n (x0 - x_n)`, `m <- momentum m + delta`,
    `x0 <- x0 - lr (delta + momentum m)`, and all workers go on from `x0`.

    Args:
        steps: local steps from one exchange to the next, in optimizer steps; the paper's local
            optimizer is AdamW.
        lr: outer learning rate.
        momentum: outer momentum, in [0, 1).
        moments: what the optimizers keep that is averaged with the parameters, in full precision, such as
            "exp_avg" and "exp_avg_sq" of Adam, or "momentum_buffer" of SGD; nothing unless given.

    Returns: the algorithm.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.diloco import diloco
        >>> trajectory(diloco(steps=2), [[1.0, 3.0]] * 4)
        tensor([[ 1.0000,  3.0000],
                [ 5.3200,  5.3200],
                [ 6.3200,  8.3200],
                [12.9080, 12.9080]])

    Reference: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models",
        arXiv 2311.08105.
    """
    rule = Rule(
        trigger=every(steps=steps),
        payload=deltas(),
        exchange=all_reduce(),
        outer=nesterov(lr=lr, momentum=momentum),
    )
    return Algorithm(rule.with_moments(moments), name="diloco")
