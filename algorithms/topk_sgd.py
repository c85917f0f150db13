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
        >>> topk_sgd(density=0.01).rules[0].compressor
        error_feedback(compressor=top_k(density=0.01))

    Reference: Stich et al., "Sparsified SGD with Memory", NeurIPS 2018, arXiv 1809.07599.

    Differs from the paper: the optimizer's learning rate and momentum come after the exchange.
    """
    compressor = error_feedback(compressor=top_k(density=density))
    rule = Rule(payload=gradients(), compressor=compressor, exchange=all_gather())
    return Algorithm((rule,), name="topk_sgd")
