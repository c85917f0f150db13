"""Deep gradient compression."""

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Density, Fraction
from relaxcomm.primitives import all_gather, dgc as sampled_top_k, gradients, momentum_correction


def dgc(density: Density = 0.001, momentum: Fraction = 0.9) -> Algorithm:
    """Send the largest entries of locally gathered momentum, and forget them where they were sent.

    `u <- momentum u + g`, `v <- v + u`; send the largest entries of v by a sampled threshold; where sent,
    `u <- 0` and `v <- 0`. The optimizer must be plain SGD: momentum is in here.

    Args:
        density: fraction of the entries sent, in (0, 1], or `piecewise` for the paper's warm-up (0.25,
            0.063, 0.015, 0.004, 0.001, an epoch each).
        momentum: in [0, 1).

    Returns: the algorithm.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.dgc import dgc
        >>> trajectory(dgc(density=0.5, momentum=0.5), [[[4.0, 1.0]] * 2] * 3)[:, 0]  # of rank 0
        tensor([[ 4.0000,  0.0000],
                [ 8.0000,  0.0000],
                [12.0000,  4.2500]])

    Reference: Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for
        Distributed Training", ICLR 2018, arXiv 1712.01887.

    Differs from the paper: gradients are not clipped here; clip them locally before, if at all.
    """
    compressor = momentum_correction(compressor=sampled_top_k(density=density), momentum=momentum)
    rule = Rule(payload=gradients(), compressor=compressor, exchange=all_gather())
    return Algorithm((rule,), name="dgc")
