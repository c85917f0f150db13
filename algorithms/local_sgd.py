"""Local SGD."""

from relaxcomm import Algorithm, Rule, Steps, all_reduce, every, parameters


def local_sgd(steps: Steps = 16) -> Algorithm:
    """Train alone for `steps` optimizer steps, then average the parameters.

    `w <- (1/N) sum_n w_n` after each `steps` local steps.

    Args:
        steps: local steps from one average to the next, in optimizer steps.

    Returns: the algorithm.

    Example:
        >>> local_sgd(steps=8)
        Algorithm(local_sgd: Rule(every(steps=8), parameters(), all_reduce()))

    Reference: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019.
    """
    rule = Rule(trigger=every(steps=steps), payload=parameters(), exchange=all_reduce())
    return Algorithm((rule,), name="local_sgd")
