"""Decentralised parallel SGD."""

from relaxcomm import Algorithm, Rule
from relaxcomm.primitives import gossip, parameters


def d_psgd() -> Algorithm:
    """Mix parameters with the neighbours in the configured graph while the next gradient is computed.

    `x_i <- sum_j W_ij x_j - lr g_i(x_i)`: what a step has made is sent off, mixed during the next
    forward and backward, and added just before the next optimizer step, `x_i <- x_i + (mixed - sent)`.

    Returns: the algorithm; the graph is `topology:`, such as `ring`.

    Example:
        >>> d_psgd()
        Algorithm(d_psgd: Rule(every_step(), parameters(), gossip(), delay=1))

    Reference: Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", NIPS 2017,
        arXiv 1705.09056.

    Differs from the paper: the first step mixes nothing, since all workers start from the same point.
    """
    return Algorithm((Rule(payload=parameters(), exchange=gossip(), delay=1),), name="d_psgd")
