"""QSGD."""

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Levels, Steps
from relaxcomm.primitives import gradients, qsgd as drawn_levels, scatter_gather


def qsgd(levels: Levels = 7, block_size: Steps = 512) -> Algorithm:
    """Average gradients whose entries are drawn to a few levels, without bias.

    `C(g)_i = ||g|| sgn(g_i) xi_i` in each block, `xi_i` a multiple of 1 / levels with the expectation
    `|g_i| / ||g||`; worker m averages the m-th part of all and sends `C` of the mean to all.

    Args:
        levels: above 0, 1 to 127; 7 take four bits an entry.
        block_size: entries that share a norm.

    Returns: the algorithm; any topology in which all ranks reach each other, any optimizer.

    Example:
        >>> from relaxcomm import rehearse
        >>> from relaxcomm_algorithms.bsp import bsp
        >>> from relaxcomm_algorithms.qsgd import qsgd
        >>> [rehearse(algorithm).bytes_sent for algorithm in (bsp(), qsgd(levels=3, block_size=64))]
        [3456, 900]

    Reference: Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and
        Encoding", NIPS 2017, arXiv 1610.02132.

    Differs from the paper: means are coded once more instead of sending every message to all.
    """
    compressor = drawn_levels(levels=levels, block_size=block_size)
    rule = Rule(payload=gradients(), compressor=compressor, exchange=scatter_gather())
    return Algorithm((rule,), name="qsgd")
