"""Eight-bit gradients (Bagua's ByteGrad)."""

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Steps
from relaxcomm.primitives import gradients, minmax_uint8, scatter_gather


def bytegrad(block_size: Steps = 1024) -> Algorithm:
    """Average gradients of one byte an entry, a quarter of the bytes of full precision.

    Every step: worker m gets the m-th part of all gradients as bytes, `a_m = (1/N) sum_n C(g_n[m])`, and all
    get `C(a_m)`; C rounds to 256 levels between the least and the largest entry of each block. 0 is one of
    them where it lies between, so what no rank has a gradient for stays where it is.

    Args:
        block_size: entries that share a least and a largest value.

    Returns: the algorithm; any topology in which all ranks reach each other, any optimizer.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.bytegrad import bytegrad
        >>> trajectory(bytegrad(), [[[0.0, 0.4, 254.0, 0.0, 0.6, 254.0]] * 2])[:, 0]
        tensor([[  0.,   0., 254.,   0.,   1., 254.]])

    Reference: Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations", VLDB 2022,
        arXiv 2107.01499.

    Differs from the code: see `minmax_uint8`.
    """
    rule = Rule(
        payload=gradients(), compressor=minmax_uint8(block_size=block_size), exchange=scatter_gather()
    )
    return Algorithm((rule,), name="bytegrad")
