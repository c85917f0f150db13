"""Local SGD."""

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Compressor, Index, Steps
from relaxcomm.primitives import deltas, every, exchange_for, identity, parameters


def local_sgd(steps: Steps = 16, *, compressor: Compressor | None = None, delay: Index = 0) -> Algorithm:
    """Train alone for `steps` optimizer steps, then average the parameters.

    `w <- (1/N) sum_n w_n` after each `steps` local steps. With a delay, training goes on meanwhile, and what
    each worker has learned since is kept: `w_n <- w_n + (mean - s_n)`, `s_n` what it sent.

    Args:
        steps: local steps from one average to the next, in optimizer steps.
        compressor: of what is sent; full precision unless given. With one, workers exchange what their
            parameters have moved since the last average, since that can be coded with less loss.
        delay: how late the average is taken in, in optimizer steps, at most `steps`; communication has that
            long to hide behind training.

    Returns: the algorithm.

    Raises: CompositionError for a delay above `steps`.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.local_sgd import local_sgd
        >>> trajectory(local_sgd(steps=2), [[1.0, 2.0, 6.0]] * 4)
        tensor([[ 1.,  2.,  6.],
                [ 6.,  6.,  6.],
                [ 7.,  8., 12.],
                [12., 12., 12.]])

    Reference: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019; Wang et al.,
        "Overlap Local-SGD", ICASSP 2020, for the delay.

    Differs from the paper on the delay: there is no anchor model; the average itself is taken in.
    """
    coder = compressor or identity()
    rule = Rule(
        trigger=every(steps=steps),
        payload=parameters() if compressor is None else deltas(),
        compressor=coder,
        exchange=exchange_for(coder),
        delay=delay,
    )
    return Algorithm((rule,), name="local_sgd")
