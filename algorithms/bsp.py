"""Bulk synchronous parallel SGD."""

from relaxcomm import Algorithm, Rule
from relaxcomm.primitives import all_reduce, gradients


def bsp() -> Algorithm:
    """Average gradients over all workers in every step, as DistributedDataParallel does.

    `g <- (1/N) sum_n g_n`, then the local optimizer's step. Each bucket is exchanged as soon as
    backward has filled it.

    Returns: the algorithm.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.bsp import bsp
        >>> trajectory(bsp(), [[1.0, 2.0, 6.0]] * 2)
        tensor([[3., 3., 3.],
                [6., 6., 6.]])

    Reference: Valiant, "A Bridging Model for Parallel Computation", CACM 1990.
    """
    return Algorithm((Rule(payload=gradients(), exchange=all_reduce()),), name="bsp")
