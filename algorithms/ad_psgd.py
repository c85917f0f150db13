"""Asynchronous decentralised SGD."""

from __future__ import annotations

from relaxcomm import Algorithm, Rule
from relaxcomm.primitives import pairwise, parameters


def ad_psgd() -> Algorithm:
    """Average with one neighbour at a time, in the background: no worker waits for another.

    `x_i, x_j <- (x_i + x_j) / 2` for an active worker i and a neighbour j that it draws; meanwhile both train
    on and keep what they learn: `x_i <- x_i - lr g_i`. Active are the workers of one side of a bipartite
    graph; those of the other side answer at once and never ask. The next message leaves when the last
    has been answered. The mean of all workers moves by their updates alone. BatchNorm's statistics stay
    with their worker until `close()`.

    Returns: the algorithm; any bipartite graph: `grid`, `star`, `hypercube`, a `ring` of an even number, or
        `complete`, where even workers average with odd ones.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.ad_psgd import ad_psgd
        >>> trajectory(ad_psgd(), [[4.0, 0.0]] + [[0.0] * 2] * 3)
        tensor([[4., 0.],
                [4., 2.],
                [2., 2.],
                [2., 2.]])

    Reference: Lian et al., "Asynchronous Decentralized Parallel Stochastic Gradient Descent", ICML 2018,
        arXiv 1710.06952.

    Differs from the paper: a worker sends between its steps, not in the middle of one, and takes a mean in
        before the update that follows its arrival; of a passive worker a copy is averaged, which it
        takes over at its next step.
    """
    rule = Rule(payload=parameters(), exchange=pairwise(), delay="unbounded")
    return Algorithm((rule,), name="ad_psgd")
