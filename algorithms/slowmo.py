"""SlowMo."""

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Fraction, Moments, Rate, Steps
from relaxcomm.primitives import all_reduce, deltas, every, slowmo as slow_momentum


def slowmo(
    steps: Steps = 48, lr: Rate = 1.0, momentum: Fraction = 0.5, *, moments: Moments = ()
) -> Algorithm:
    """Local SGD whose averages are moved by slow momentum.

    Every `steps` local steps, with anchor `x0`, average `x` and local learning rate gamma:
    `u <- momentum u + (x0 - x) / gamma`, `x0 <- x0 - lr gamma u`, and all workers go on from `x0`.

    Args:
        steps: local steps from one exchange to the next, in optimizer steps.
        lr: the slow learning rate; 1 with momentum 0 is Local SGD.
        momentum: the slow momentum, in [0, 1).
        moments: what the optimizers keep that is averaged with the parameters, in full precision, such as
            "exp_avg" and "exp_avg_sq" of Adam, or "momentum_buffer" of SGD; nothing unless given.

    Returns: the algorithm.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.slowmo import slowmo
        >>> trajectory(slowmo(steps=2), [[1.0, 3.0]] * 6)
        tensor([[ 1.,  3.],
                [ 4.,  4.],
                [ 5.,  7.],
                [10., 10.],
                [11., 13.],
                [17., 17.]])

    Reference: Wang et al., "SlowMo: Improving Communication-Efficient Distributed SGD with Slow
        Momentum", ICLR 2020.

    Differs from the paper: the local optimizer's own momentum is kept over an exchange (the paper's
    "maintain" strategy), or averaged with `moments`, and never reset.
    """
    rule = Rule(
        trigger=every(steps=steps),
        payload=deltas(),
        exchange=all_reduce(),
        outer=slow_momentum(lr=lr, momentum=momentum),
    )
    return Algorithm(rule.with_moments(moments), name="slowmo")
