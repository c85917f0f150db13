"""CHOCO-SGD."""

from __future__ import annotations

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Compressor, Share
from relaxcomm.primitives import choco_gossip, parameters, sign


def choco_sgd(*, gamma: Share = 0.4, compressor: Compressor | None = None) -> Algorithm:
    """Gossip in which neighbours send one bit an entry, or whatever else is left of their differences.

    `y_i = x_i - lr g_i(x_i)`; `q_i = C(y_i - r_i)`, `r_j <- r_j + q_j`; `x_i = y_i + gamma sum_j W_ij (r_j -
    r_i)`, where `r_j` is what the neighbours of rank j know of it. What C leaves out is sent later.

    Args:
        gamma: the size of a move towards the neighbours, in (0, 1]: near 1 for 8 bits, some 0.4 for signs,
            0.04 for one entry in a hundred.
        compressor: C, any of one message; a sign an entry and a size a tensor unless given.

    Returns: the algorithm; any graph that stays the same, such as `ring`, `torus` or `exponential`.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.choco_sgd import choco_sgd
        >>> trajectory(choco_sgd(gamma=0.5), [[3.0, 0.0, 0.0]] + [[0.0] * 3] * 3, topology="ring")
        tensor([[2.0000, 0.5000, 0.5000],
                [1.5000, 0.7500, 0.7500],
                [1.2500, 0.8750, 0.8750],
                [1.1250, 0.9375, 0.9375]])

    Reference: Koloskova, Stich and Jaggi, "Decentralized Stochastic Optimization and Gossip Algorithms
        with Compressed Communication", ICML 2019, arXiv 1902.00340.

    Differs from the paper: public copies begin at the common start rather than at 0.
    """
    rule = Rule(payload=parameters(), compressor=compressor or sign(), exchange=choco_gossip(gamma=gamma))
    return Algorithm((rule,), name="choco_sgd")
