"""GraVAC: a density that follows what is gained by sending more."""

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Share, Steps
from relaxcomm.primitives import adaptive_top_k, all_gather, error_feedback, gradients


def gravac(gain: Share = 0.9, most: Share = 0.1, least: Share = 0.001, window: Steps = 50) -> Algorithm:
    """Send the gradients' largest entries, as few as hold the wanted part of their squared norm.

    `u = g + e`; send the largest entries of u; `e` is the rest; the density is halved when half of the
    entries would hold `gain ||u||^2`, and doubled when all do not.

    Args:
        gain: wanted part of the squared norm, in (0, 1].
        most: largest density, with which it begins.
        least: smallest density.
        window: steps between two decisions.

    Returns: the algorithm; any topology in which all ranks reach each other.

    Example:
        >>> from relaxcomm import rehearse
        >>> from relaxcomm_algorithms.gravac import gravac
        >>> [rehearse(gravac(gain=gain, window=1)).bytes_sent for gain in (0.2, 0.99)]
        [1284, 1380]

    Reference: Tyagi and Swany, "GraVAC: Adaptive Compression for Communication-Efficient Distributed DL
        Training", IEEE CLOUD 2023, arXiv 2305.12201.

    Differs from the paper: the density also goes up again, and by the gain alone, not by measured
        throughput.
    """
    coder = adaptive_top_k(gain=gain, most=most, least=least, window=window)
    rule = Rule(payload=gradients(), compressor=error_feedback(compressor=coder), exchange=all_gather())
    return Algorithm((rule,), name="gravac")
