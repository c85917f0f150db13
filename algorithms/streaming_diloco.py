"""Streaming DiLoCo."""

from __future__ import annotations

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Compressor, Fraction, Index, Rate, Steps
from relaxcomm.primitives import deltas, every, exchange_for, identity, nesterov


def streaming_diloco(
    *,
    steps: Steps = 100,
    fragments: Steps = 2,
    delay: Index = 5,
    merge: Fraction = 0.5,
    lr: Rate = 0.4,
    momentum: Fraction = 0.9,
    compressor: Compressor | None = None,
) -> Algorithm:
    """DiLoCo a fragment of the model at a time, each exchanged while training goes on.

    Every `steps / fragments` steps it is the next fragment's turn: `delta = (1/N) sum_n (x0 - x_n)`,
    `m <- momentum m + delta`, `x0 <- x0 - lr (delta + momentum m)`, and `delay` steps later each worker takes
    it in: `x_n <- (1 - merge) x0 + merge x_n`. So the most that is sent at once is a fragment, and it has
    `delay` steps to arrive.

    Args:
        steps: local steps from one exchange of a fragment to the next, in optimizer steps.
        fragments: parts of about equal size into which the parameters are cut, in the model's order; at
            most `steps`.
        delay: how late a result is taken in, in optimizer steps, at most `steps`.
        merge: weight of the worker's own parameters then, in [0, 1).
        lr: outer learning rate.
        momentum: outer momentum, in [0, 1).
        compressor: of the deltas; full precision unless given. The paper's four bits are
            `quantize(bits=4, block_size=64, rounding="stochastic")`.

    Returns: the algorithm; it needs the topology `complete`.

    Raises: CompositionError for more fragments than steps, and when it is attached for more fragments
        than the model has parameters.

    Example:
        >>> from relaxcomm import rehearse
        >>> from relaxcomm_algorithms.streaming_diloco import streaming_diloco
        >>> streaming = rehearse(streaming_diloco(steps=4, fragments=2, delay=1), epochs=4)
        >>> streaming.exchanges, streaming.replicas_equal
        (7, False)

    Reference: Douillard et al., "Streaming DiLoCo with overlapping communication: Towards a Distributed
        Free Lunch", arXiv 2501.18512.

    Differs from the paper: fragments are consecutive parameters of about equal size, not layers; four bits
        are evenly spaced levels, not a floating-point format.
    """
    coder = compressor or identity()
    rule = Rule(
        trigger=every(steps=steps),
        payload=deltas(merge=merge),
        compressor=coder,
        exchange=exchange_for(coder),
        delay=delay,
        outer=nesterov(lr=lr, momentum=momentum),
    )
    return Algorithm(rule.in_fragments(fragments), name="streaming_diloco")
