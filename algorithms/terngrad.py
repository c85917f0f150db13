"""TernGrad."""

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Rate
from relaxcomm.primitives import gradients, scatter_gather, terngrad as ternary


def terngrad(clip: Rate | None = 2.5) -> Algorithm:
    """Average gradients of three levels for each tensor, in 1.6 bits an entry.

    `C(g)_i = s sgn(g_i) b_i`, `P(b_i = 1) = min(1, |g_i| / s)`, `s = min(max |g|, clip rms(g))`; worker m
    averages the m-th part of all and sends `C` of the mean to all.

    Args:
        clip: in units of the root mean square of a tensor's entries, or None to cut nothing.

    Returns: the algorithm; any topology in which all ranks reach each other; the variance is high, so
        small learning rates suit it.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.terngrad import terngrad
        >>> trajectory(terngrad(clip=None), [[[2.0, -1.0], [2.0, -1.0]]] * 2)[:, 0]  # of rank 0
        tensor([[ 2., -1.],
                [ 4., -2.]])

    Reference: Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep
        Learning", NIPS 2017, arXiv 1705.07878.

    Differs from the paper: means are coded once more, with a size of their own, instead of a size that
        the workers share; entries are clipped about 0.
    """
    rule = Rule(payload=gradients(), compressor=ternary(clip=clip), exchange=scatter_gather())
    return Algorithm((rule,), name="terngrad")
