"""Top-k SGD with error feedback."""

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Density
from relaxcomm.primitives import all_gather, error_feedback, gradients, top_k


def topk_sgd(density: Density = 0.001) -> Algorithm:
    """Send the gradients' largest entries, exactly, and keep the rest for later.

    `u = g + e`; send the `max(floor(density d), 1)` largest entries of u; `e` is the rest of u.

    Args:
        density: fraction of the entries sent, in (0, 1], or `piecewise` for a warm-up.

    Returns: the algorithm.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.topk_sgd import topk_sgd
        >>> trajectory(topk_sgd(density=0.5), [[[3.0, 2.0]] * 2] * 2)[:, 0]  # of rank 0
        tensor([[3., 0.],
                [3., 4.]])

    Reference: Stich et al., "Sparsified SGD with Memory", NeurIPS 2018, arXiv 1809.07599.

    Differs from the paper: the optimizer's learning rate and momentum come after the exchange.
    """
    compressor = error_feedback(compressor=top_k(density=density))
    rule = Rule(payload=gradients(), compressor=compressor, exchange=all_gather())
    return Algorithm((rule,), name="topk_sgd")
