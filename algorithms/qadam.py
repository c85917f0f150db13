"""Adam with coarse messages (1-bit Adam, QAdam)."""

from typing import Literal

from relaxcomm import Algorithm, Rule
from relaxcomm.plugin import Fraction, Rate, Steps
from relaxcomm.primitives import (
    error_feedback,
    frozen_adam,
    identity,
    minmax_uint8,
    momentum,
    scatter_gather,
    sign,
    switch,
)


def qadam(
    warmup_steps: Steps = 100,
    bits: Literal[1, 8] = 1,
    beta: Fraction = 0.9,
    beta2: Fraction = 0.999,
    eps: Rate = 1e-8,
) -> Algorithm:
    """Adam whose momentum is exchanged in one or eight bits once its second moment has been learnt.

    `m_n = beta m + (1 - beta) g_n`, m the mean of the workers' `C(m_n + e_n)`, coded once more, with
    residuals on both sides; step along `m / (sqrt(v) + eps)`. In the first `warmup_steps` steps C is exact
    and v follows the squares of the mean gradients; then v stays.

    Args:
        warmup_steps: in full precision; 15 to 20 percent of the run in the paper.
        bits: 1, signs with a mean size for each tensor, or 8, levels of blocks.
        beta: of the momentum, in [0, 1).
        beta2: of the second moment, in [0, 1).
        eps: positive. Entries without a gradient in the warm-up, such as the weights of pixels that are 0 in
            all images, keep v = 0, and what is coded coarsely is not 0: with 1e-8 they leave all bounds.
            On such data, the task digits among them, take 1e-3.

    Returns: the algorithm; any topology in which all ranks reach each other. The optimizer must be SGD
        without momentum, with the learning rate and the (decoupled) weight decay that Adam would have.

    Example:
        >>> from relaxcomm import rehearse
        >>> from relaxcomm_algorithms.qadam import qadam
        >>> run = rehearse(qadam(warmup_steps=1000))
        >>> run.replicas_equal, run.bytes_sent
        (True, 3588)
        >>> run = rehearse(qadam(warmup_steps=4))
        >>> run.replicas_equal, run.bytes_sent
        (True, 1636)

    Reference: Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
        Speed", ICML 2021, arXiv 2102.02888.

    Differs from the code: moments are corrected for their beginning at 0; sizes are means of a tensor's
        entries rather than their root mean square.
    """
    coder = error_feedback(compressor=sign() if bits == 1 else minmax_uint8())
    rule = Rule(
        payload=momentum(beta=beta),
        compressor=switch(first=identity(), then=coder, steps=warmup_steps),
        exchange=scatter_gather(server_feedback=True),
        outer=frozen_adam(warmup_steps=warmup_steps, beta=beta, beta2=beta2, eps=eps),
    )
    return Algorithm((rule,), name="qadam")
