"""Stochastic gradient push."""

from relaxcomm import Algorithm, Rule
from relaxcomm.primitives import parameters, push_sum


def sgp() -> Algorithm:
    """Gossip over a directed graph, in which a worker sends to some and need not hear from them.

    `x_i <- sum_j P_ij (x_j - lr g_j(z_j))`, `w_i <- sum_j P_ij w_j`, `z_i = x_i / w_i`, where each worker
    gives equal parts to itself and along its links, or, where all of these go both ways, `gossip`'s weights.
    The model holds z, at which gradients are taken.

    Returns: the algorithm; any graph in which each rank reaches all others: `one_peer_exponential` is the
        paper's, `{file: {path: links.graphml}}` holds one's own.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.sgp import sgp
        >>> trajectory(sgp(), [[8.0, 0.0, 0.0, 0.0]] + [[0.0] * 4], topology="one_peer_exponential")
        tensor([[4., 4., 0., 0.],
                [2., 2., 2., 2.]])

    Reference: Assran et al., "Stochastic Gradient Push for Distributed Deep Learning", ICML 2019,
        arXiv 1811.10792.
    """
    return Algorithm((Rule(payload=parameters(), exchange=push_sum()),), name="sgp")
