"""Decentralised parallel SGD."""

from relaxcomm import Algorithm, Rule
from relaxcomm.primitives import gossip, parameters


def d_psgd() -> Algorithm:
    """Mix parameters with the neighbours in the configured graph while the next gradient is computed.

    `x_i <- sum_j W_ij x_j - lr g_i(x_i)`: what a step has made is sent off, mixed during the next
    forward and backward, and added just before the next optimizer step, `x_i <- x_i + (mixed - sent)`.

    Returns: the algorithm; the graph is `topology:`, such as `ring`.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.d_psgd import d_psgd
        >>> trajectory(d_psgd(), [[12.0, 0.0, 0.0, 0.0]] + [[0.0] * 4] * 2, topology="ring")
        tensor([[12.0000,  0.0000,  0.0000,  0.0000],
                [ 4.0000,  4.0000,  0.0000,  4.0000],
                [ 4.0000,  2.6667,  2.6667,  2.6667]])

    Reference: Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", NIPS 2017,
        arXiv 1705.09056.

    Differs from the paper: the first step mixes nothing, since all workers start from the same point.
    """
    return Algorithm((Rule(payload=parameters(), exchange=gossip(), delay=1),), name="d_psgd")
