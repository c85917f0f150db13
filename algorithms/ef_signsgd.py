"""signSGD with error feedback."""

from relaxcomm import Algorithm, Rule
from relaxcomm.primitives import all_gather, error_feedback, gradients, sign


def ef_signsgd() -> Algorithm:
    """Send one bit an entry and the mean size of each tensor; keep what is left out for later.

    `u = g + e`; send `C(u) = (||u||_1 / d) sign(u)` for each tensor; `e = u - C(u)`; step along
    `(1/N) sum_n C(u_n)`.

    Returns: the algorithm; any topology in which all ranks reach each other. A rank sends N - 1 messages of
        one bit an entry, so it suits up to some 30 workers; beyond, `bytegrad` sends less.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.ef_signsgd import ef_signsgd
        >>> trajectory(ef_signsgd(), [[[3.0, 1.0]] * 2] * 2)[:, 0]  # of rank 0
        tensor([[2., 2.],
                [4., 0.]])

    Reference: Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
        ICML 2019, arXiv 1901.09847.

    Differs from the paper: the optimizer's learning rate comes after the exchange.
    """
    rule = Rule(payload=gradients(), compressor=error_feedback(compressor=sign()), exchange=all_gather())
    return Algorithm((rule,), name="ef_signsgd")
