"""Local SGD between groups of workers that are synchronous inside."""

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Moments, Steps
from relaxcomm.primitives import every, gradients, group_all_reduce, hierarchical_all_reduce, parameters


def hierarchical_local_sgd(steps: Steps = 16, *, moments: Moments = ()) -> Algorithm:
    """Average gradients inside each group in every step, parameters of all workers every `steps` steps.

    `g_n <- mean of g over n's group` in each step; `w <- (1/N) sum_n w_n` after each `steps` steps, reduced
    inside, exchanged between, and spread inside the groups, which may differ in size.

    Args:
        steps: local steps from one average to the next, in optimizer steps.
        moments: what the optimizers keep that is averaged with the parameters, in full precision, such as
            "exp_avg" and "exp_avg_sq" of Adam, or "momentum_buffer" of SGD; nothing unless given.

    Returns: the algorithm; the groups are `topology: {hierarchical: {sizes: [4, 4]}}`.

    Example:
        >>> from relaxcomm import trajectory
        >>> from relaxcomm_algorithms.hierarchical_local_sgd import hierarchical_local_sgd
        >>> moves = [[1.0, 3.0, 8.0]] * 2
        >>> trajectory(hierarchical_local_sgd(steps=2), moves, topology={"hierarchical": {"sizes": 2}})
        tensor([[2., 2., 8.],
                [8., 8., 8.]])

    Reference: Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020, arXiv 1808.07217.
    """
    inside = Rule(payload=gradients(), exchange=group_all_reduce())
    between = Rule(trigger=every(steps=steps), payload=parameters(), exchange=hierarchical_all_reduce())
    return Algorithm((inside, *between.with_moments(moments)), name="hierarchical_local_sgd")
