"""DeMo: decoupled momentum."""

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Share, Steps
from relaxcomm.primitives import all_gather, dct_top_k, error_feedback, gradients, signs


def demo(decay: Share = 0.999, num_kept: Steps = 32, chunk_size: Steps = 64) -> Algorithm:
    """Send the fast components of each worker's momentum; the slow ones stay and grow.

    `m <- decay m + g`; q, the largest coefficients of m's cosine transform in each block; `m <- m - T^-1 q`;
    all step along `sign(T^-1 sum_n q_n)`.

    Args:
        decay: of the momentum, in (0, 1].
        num_kept: coefficients of each block that are sent.
        chunk_size: sides of a block of a matrix, and length of one of a vector, in entries.

    Returns: the algorithm; any topology in which all ranks reach each other. The optimizer should be SGD
        without momentum. Gradients become 1 or -1, so begin with a learning rate such as Adam's, 1e-3.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.demo import demo
        >>> trajectory(demo(num_kept=1, chunk_size=4), [[[1.0, 2.0, 3.0, 4.0]] * 2] * 2)[:, 0]  # of rank 0
        tensor([[1., 1., 1., 1.],
                [2., 2., 2., 2.]])

    Reference: Peng et al., "DeMo: Decoupled Momentum Optimization", arXiv 2411.19870.

    Differs from the code: the learning rate is not in the momentum, which is the same while it does not
        change; see also `dct_top_k`.
    """
    compressor = error_feedback(compressor=dct_top_k(num_kept=num_kept, chunk_size=chunk_size), decay=decay)
    rule = Rule(payload=gradients(), compressor=compressor, exchange=all_gather(), outer=signs())
    return Algorithm((rule,), name="demo")
