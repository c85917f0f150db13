"""Post-local SGD."""

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Moments, Steps
from relaxcomm.primitives import all_reduce, every, gradients, parameters


def post_local_sgd(*, steps: Steps = 16, after_steps: Steps, moments: Moments = ()) -> Algorithm:
    """Average gradients in every step at first, parameters every `steps` steps later on.

    `H = 1` while `t < after_steps`, then `H = steps`. The paper switches at the first decay of the
    learning rate, which is what `after_steps` should be.

    Args:
        steps: local steps from one average to the next in the second phase, in optimizer steps.
        after_steps: optimizer steps of the synchronous phase.
        moments: what the optimizers keep that is averaged with the parameters, in full precision, such as
            "exp_avg" and "exp_avg_sq" of Adam, or "momentum_buffer" of SGD; nothing unless given.

    Returns: the algorithm.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.post_local_sgd import post_local_sgd
        >>> replicas = trajectory(post_local_sgd(after_steps=100), [[1.0, 3.0]] * 140)
        >>> [step for step, (first, second) in enumerate(replicas) if first == second][98:]
        [98, 99, 115, 131]

    Reference: Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020.
    """
    synchronous = Rule(payload=gradients(), exchange=all_reduce(), active=(0, after_steps))
    local = Rule(
        trigger=every(steps=steps),
        payload=parameters(),
        exchange=all_reduce(),
        active=(after_steps, None),
    )
    return Algorithm((synchronous, *local.with_moments(moments)), name="post_local_sgd")
