"""Gaussian-K SGD."""

from typing import Literal

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Density
from relaxcomm.primitives import all_gather, error_feedback, gaussian_k, gradients


def gaussiank_sgd(density: Density = 0.001, fallback: Literal["top_k"] | None = "top_k") -> Algorithm:
    """Send the gradients' largest entries, found by a threshold that a normal distribution suggests.

    `u = g + e`; send the entries with `|u| > t`, about `density d` of them; `e` is the rest of u; the
    workers' messages are added up and divided by N. The optimizer's momentum comes after that.

    Args:
        density: fraction of the entries sent, in (0, 1], or `piecewise` for a warm-up, such as
            `{piecewise: {values: [0.016, 0.004, 0.001], steps: [500, 1000]}}`, through
            which the residual stays.
        fallback: what is sent where the last threshold finds far fewer entries: "top_k", the wanted number of
            the largest, or None, those found, even if there are none, as published.

    Returns: the algorithm.

    Example:
        >>> from relaxcomm import rehearse
        >>> from relaxcomm_algorithms.bsp import bsp
        >>> from relaxcomm_algorithms.gaussiank_sgd import gaussiank_sgd
        >>> [rehearse(algorithm).bytes_sent for algorithm in (bsp(), gaussiank_sgd(density=0.1))]
        [3456, 1572]

    Reference: Shi et al., "Understanding Top-k Sparsification in Distributed Deep Learning",
        arXiv 1911.08772.

    Differs from the paper's code: entries that several workers send are all counted; messages have a
        fixed capacity of 4 k / 3, and what does not fit stays in the residual; the configured density
        is kept. Where the threshold tried last finds less than two thirds of the wanted entries, the
        largest are sent: the published rule then often sends nothing, step after step, at densities such
        as 0.001.
    """
    compressor = error_feedback(compressor=gaussian_k(density=density, fallback=fallback))
    rule = Rule(payload=gradients(), compressor=compressor, exchange=all_gather())
    return Algorithm((rule,), name="gaussiank_sgd")
