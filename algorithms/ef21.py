"""EF21."""

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Density
from relaxcomm.primitives import all_gather, ef21 as following, gradients, top_k


def ef21(density: Density = 0.01) -> Algorithm:
    """Send the largest entries of how far the gradient is from an estimate of it that all follow.

    `g_n <- g_n + C(grad_n - g_n)`, `g <- g + (1/N) sum_n C(grad_n - g_n)`; step along g; C keeps the
    `max(floor(density d), 1)` largest entries.

    Args:
        density: fraction of the entries sent, in (0, 1], or `piecewise` for a warm-up.

    Returns: the algorithm; any topology in which all ranks reach each other. It suits large batches, since
        the estimates follow the noise of small ones slowly.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.ef21 import ef21
        >>> trajectory(ef21(density=0.5), [[[3.0, 2.0]] * 2] * 3)[:, 0]  # of rank 0
        tensor([[3., 0.],
                [6., 2.],
                [9., 4.]])

    Reference: Richtárik et al., "EF21: A New, Simpler, Theoretically Better, and Practically Faster Error
        Feedback", NeurIPS 2021, arXiv 2106.05203.

    Differs from the paper: estimates begin at 0 rather than at the first gradients.
    """
    compressor = following(compressor=top_k(density=density))
    return Algorithm((Rule(payload=gradients(), compressor=compressor, exchange=all_gather()),), name="ef21")
