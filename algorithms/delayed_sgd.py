"""Delayed SGD."""

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Steps
from relaxcomm.primitives import all_reduce, gradients


def delayed_sgd(*, delay: Steps = 1) -> Algorithm:
    """Apply the mean gradient of `delay` steps ago, so that an exchange may take that long.

    `w_(t+1) = w_t - lr mean_n g_n(w_(t-delay))`. In the first `delay` steps no gradient has come back,
    and the optimizer gets zeros on all workers alike, so that replicas never part. `close()` applies those
    that are still on their way, one optimizer step each.

    Args:
        delay: in optimizer steps, 1 or more.

    Returns: the algorithm; it needs the topology `complete`.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.delayed_sgd import delayed_sgd
        >>> trajectory(delayed_sgd(delay=2), [[1.0, 3.0]] * 4)
        tensor([[0., 0.],
                [0., 0.],
                [2., 2.],
                [4., 4.]])

    Reference: Langford, Smola and Zinkevich, "Slow Learners are Fast", NIPS 2009, arXiv 0911.0491.

    Differs from the paper: workers compute in step, and the delay covers the network rather than
        workers that take turns.
    """
    return Algorithm((Rule(payload=gradients(), exchange=all_reduce(), delay=delay),), name="delayed_sgd")
