"""DES-LOC."""

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Steps
from relaxcomm.primitives import all_reduce, every, optimizer_state, parameters


def des_loc(
    steps: Steps = 256, first_steps: Steps | None = None, second_steps: Steps | None = None
) -> Algorithm:
    """Local Adam whose parameters are averaged often, its first moments seldom, its second more seldom.

    After every `steps` local steps `x <- (1/N) sum_n x_n`; after every `first_steps`
    `u <- (1/N) sum_n u_n`, and after every `second_steps` `v <- (1/N) sum_n v_n`, Adam's moments.

    Args:
        steps: K_x, local steps from one average of the parameters to the next.
        first_steps: K_u, those of the first moments; 3 K_x unless given.
        second_steps: K_v, those of the second moments; 6 K_x unless given.

    Returns: the algorithm. The optimizer must be Adam, AdamW or such: one with `betas`. Where a worker has
        seen no gradient that others have, as of pixels of the task digits, u is averaged before v, and
        `u / (sqrt(v) + eps)` leaves all bounds with Adam's eps of 1e-8: take an eps of 1e-3, or
        `second_steps` equal to `first_steps`.

    Example:
        >>> import torch
        >>> from relaxcomm import rehearse
        >>> from relaxcomm_algorithms.des_loc import des_loc
        >>> local_adam = des_loc(steps=2, first_steps=2, second_steps=2)
        >>> runs = [rehearse(one, make_optimizer=torch.optim.Adam) for one in (local_adam, des_loc(steps=2))]
        >>> [run.exchanges for run in runs], runs[0].bytes_sent / runs[1].bytes_sent
        ([6, 6], 2.0)

    Reference: Iacob et al., "DES-LOC: Desynced Low Communication Adaptive Optimizers for Training Foundation
        Models", arXiv 2505.22549, which recommends 3 K_x and 6 K_x; the default of `steps` is ours.
    """
    averaged = (
        (parameters(), steps),
        (optimizer_state(slots=("exp_avg",)), first_steps or 3 * steps),
        (optimizer_state(slots=("exp_avg_sq",)), second_steps or 6 * steps),
    )
    rules = (Rule(trigger=every(steps=n), payload=one, exchange=all_reduce()) for one, n in averaged)
    return Algorithm(tuple(rules), name="des_loc")
