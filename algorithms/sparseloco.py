"""SparseLoCo."""

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Rate, ScheduledBits, Share, Steps
from relaxcomm.primitives import all_gather, chain, chunk_top_k, deltas, error_feedback, every, quantize, sgd


def sparseloco(
    steps: Steps = 30,
    num_kept: Steps = 64,
    chunk_size: Steps = 4096,
    bits: ScheduledBits = 2,
    decay: Share = 0.95,
    lr: Rate = 1.0,
) -> Algorithm:
    """Long local phases whose progress is sent as a few entries of a few bits; the rest is kept for later.

    Every `steps` local steps: `e <- decay e + (x0 - x_n)`, `q_n = Q(top_k(e))` in each chunk,
    `e <- e - q_n`; all go on from `x0 <- x0 - lr (1/N) sum_n q_n`.

    Args:
        steps: local steps from one exchange to the next; the local optimizer is AdamW in the paper.
        num_kept: entries of each chunk that are sent.
        chunk_size: entries of a chunk of a tensor.
        bits: of a value, 1 to 8, or `piecewise`.
        decay: of what was left out, in (0, 1].
        lr: outer learning rate.

    Returns: the algorithm; any topology in which all ranks reach each other.

    Example:
        >>> from relaxcomm import rehearse
        >>> from relaxcomm_algorithms.diloco import diloco
        >>> from relaxcomm_algorithms.sparseloco import sparseloco
        >>> sparse = sparseloco(steps=4, num_kept=4, chunk_size=64)
        >>> [rehearse(algorithm).bytes_sent for algorithm in (diloco(steps=4), sparse)]
        [831, 180]

    Reference: Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo", arXiv 2508.15706.
    """
    coder = chain(compressors=(chunk_top_k(num_kept=num_kept, chunk_size=chunk_size), quantize(bits=bits)))
    rule = Rule(
        trigger=every(steps=steps),
        payload=deltas(),
        compressor=error_feedback(compressor=coder, decay=decay),
        exchange=all_gather(),
        outer=sgd(lr=lr),
    )
    return Algorithm((rule,), name="sparseloco")
