"""Bulk synchronous parallel SGD."""

from relaxcomm import Algorithm, Rule
from relaxcomm.primitives import all_reduce, gradients


def bsp() -> Algorithm:
    """Average gradients over all workers in every step, as DistributedDataParallel does.

    `g <- (1/N) sum_n g_n`, then the local optimizer's step. Each bucket is exchanged as soon as
    backward has filled it.

    Returns: the algorithm.

    Example:
        >>> bsp()
        Algorithm(bsp: Rule(every_step(), gradients(), all_reduce()))

    Reference: Valiant, "A Bridging Model for Parallel Computation", CACM 1990.
    """
    return Algorithm((Rule(payload=gradients(), exchange=all_reduce()),), name="bsp")
