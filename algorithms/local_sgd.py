"""Local SGD."""

from __future__ import annotations

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Compressor, Index, Moments, Steps
from relaxcomm.primitives import deltas, every, exchange_for, identity, parameters


def local_sgd(
    steps: Steps = 16,
    *,
    compressor: Compressor | None = None,
    delay: Index = 0,
    fragments: Steps = 1,
    moments: Moments = (),
) -> Algorithm:
    """Train alone for `steps` optimizer steps, then average the parameters.

    `w <- (1/N) sum_n w_n` after each `steps` local steps. With a delay, training goes on meanwhile, and what
    each worker has learned since is kept: `w_n <- w_n + (mean - s_n)`, `s_n` what it sent.

    Args:
        steps: local steps from one average to the next, in optimizer steps.
        compressor: of what is sent; full precision unless given. With one, workers exchange what their
            parameters have moved since the last average, since that can be coded with less loss.
        delay: how late the average is taken in, in optimizer steps, at most `steps`; communication has that
            long to hide behind training.
        fragments: parts of about equal size into which the parameters are cut, in the model's order, at most
            `steps`. Every `steps / fragments` steps it is the next one's turn, so that less is sent at once.
        moments: what the optimizers keep that is averaged with the parameters, in full precision, such as
            "exp_avg" and "exp_avg_sq" of Adam, or "momentum_buffer" of SGD; nothing unless given.

    Returns: the algorithm.

    Raises: CompositionError for a delay, or fragments, above `steps`.

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
    whole = Rule(
        trigger=every(steps=steps),
        payload=parameters() if compressor is None else deltas(),
        compressor=coder,
        exchange=exchange_for(coder),
        delay=delay,
    )
    rules = [rule for part in whole.in_fragments(fragments) for rule in part.with_moments(moments)]
    return Algorithm(tuple(rules), name="local_sgd")
