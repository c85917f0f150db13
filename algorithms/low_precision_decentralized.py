"""Bagua's decentralised SGD in low precision."""

from __future__ import annotations

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Compressor
from relaxcomm.primitives import dcd_gossip, minmax_uint8, parameters, ring


def low_precision_decentralized(*, compressor: Compressor | None = None) -> Algorithm:
    """A ring of workers that send both neighbours one byte an entry.

    With x what the optimizer has made of w, and L and R what is known of the neighbours:
    `z = x + L / 3 + R / 3 - 5 w / 3`; send Q(z); `L <- L + Q(z_L)`, `R <- R + Q(z_R)`,
    `x = w <- w + Q(z)`. That is DCD-PSGD on a ring. Two workers have one neighbour each and weights of one
    half.

    Args:
        compressor: Q, any of one message and of small error: what it leaves out is gone. Bagua's 8 bits
            unless given.

    Returns: the algorithm; it brings its ring, for any number of workers, so leave topology out.

    Example:
        >>> from relaxcomm import rehearse
        >>> from relaxcomm_algorithms.d_psgd import d_psgd
        >>> from relaxcomm_algorithms.low_precision_decentralized import low_precision_decentralized
        >>> full = rehearse(d_psgd(), topology="ring")
        >>> rehearse(low_precision_decentralized()).bytes_sent, full.bytes_sent
        (1692, 5052)

    Reference: Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations", VLDB 2022.

    Differs from the paper: odd numbers of workers and two are allowed; of L and R what is kept is
        (L + R - 2 w) / 3.
    """
    exchange = dcd_gossip(topology=ring())
    rule = Rule(payload=parameters(), compressor=compressor or minmax_uint8(), exchange=exchange)
    return Algorithm((rule,), name="low_precision_decentralized")
