"""Decentralised SGD over the one-peer exponential graph."""

from relaxcomm import Algorithm, Rule
from relaxcomm.primitives import gossip, one_peer_exponential as one_peer_graph, parameters


def one_peer_exponential() -> Algorithm:
    """Mix half and half with one other rank a step, 1, 2, 4, … places away in turn.

    `x_i <- (x_i + x_j) / 2 - lr g_i(x_i)` with `j = i - 2^(t mod ceil(log2 N))`, modulo N: one message a
    step, and the exact mean after log2 N of them if N is a power of two. The exchange is hidden
    behind forward and backward, as in `d_psgd`.

    Returns: the algorithm.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.one_peer_exponential import one_peer_exponential
        >>> trajectory(one_peer_exponential(), [[8.0, 0.0, 0.0, 0.0]] + [[0.0] * 4] * 2)
        tensor([[8., 0., 0., 0.],
                [4., 4., 0., 0.],
                [2., 2., 2., 2.]])

    Reference: Ying et al., "Exponential Graph is Provably Efficient for Decentralized Deep Training",
        NeurIPS 2021, arXiv 2110.13363.
    """
    exchange = gossip(topology=one_peer_graph())
    return Algorithm((Rule(payload=parameters(), exchange=exchange, delay=1),), name="one_peer_exponential")
