"""PowerSGD."""

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Steps
from relaxcomm.primitives import all_reduce, error_feedback, gradients, power_sgd


def powersgd(matrix_rank: Steps = 2) -> Algorithm:
    """Average gradient matrices as products of thin ones; what is left out is kept for later.

    `M = G + e`; `P = orthogonalised mean M_n Q`, `Q <- mean M_n^T P`; step along `P Q^T`;
    `e = M - P (M^T P)^T`.

    Args:
        matrix_rank: columns of P and Q; 1 to 4 in the paper.

    Returns: the algorithm; any topology in which all ranks reach each other. Vectors, such as biases, are
        exchanged in full.

    Example:
        >>> from relaxcomm import rehearse
        >>> from relaxcomm_algorithms.bsp import bsp
        >>> from relaxcomm_algorithms.powersgd import powersgd
        >>> [rehearse(algorithm).bytes_sent for algorithm in (bsp(), powersgd(matrix_rank=1))]
        [3456, 1404]

    Reference: Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
        Optimization", NeurIPS 2019, arXiv 1905.13727.

    Differs from the paper: the optimizer's momentum comes after the exchange.
    """
    compressor = error_feedback(compressor=power_sgd(matrix_rank=matrix_rank))
    rule = Rule(payload=gradients(), compressor=compressor, exchange=all_reduce())
    return Algorithm((rule,), name="powersgd")
