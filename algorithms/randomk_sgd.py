"""Random-k SGD with error feedback."""

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Density
from relaxcomm.primitives import all_reduce, error_feedback, gradients, random_k


def randomk_sgd(density: Density = 0.01) -> Algorithm:
    """Send entries that all workers draw from the same seed, and keep the rest for later.

    `u = g + e`; all-reduce `max(floor(density d), 1)` entries of u, the same on all workers, so that no
    indices are sent; `e` is the rest of u.

    Args:
        density: fraction of the entries sent, in (0, 1], or `piecewise` for a warm-up.

    Returns: the algorithm.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.randomk_sgd import randomk_sgd
        >>> trajectory(randomk_sgd(density=0.5), [[[3.0, 2.0]] * 2] * 3)[:, 0]  # of rank 0
        tensor([[3., 0.],
                [3., 4.],
                [3., 6.]])

    Reference: Stich et al., "Sparsified SGD with Memory", NeurIPS 2018, arXiv 1809.07599.
    """
    compressor = error_feedback(compressor=random_k(density=density))
    rule = Rule(payload=gradients(), compressor=compressor, exchange=all_reduce())
    return Algorithm((rule,), name="randomk_sgd")
