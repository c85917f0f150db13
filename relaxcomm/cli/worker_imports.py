"""What local workers need, for the process that they are forked off; it ends when the launcher does.

It imports alone: a thread or a device that was opened here would be broken in what is forked.
"""

import signal

import torch._dynamo  # noqa: F401  # every optimizer imports it, which takes as long as torch itself
from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]  # as its own workers do

import relaxcomm.cli.job
import relaxcomm.engine.attach  # noqa: F401  # what a worker uses is there when it begins

_prctl_pr_set_pdeathsig(signal.SIGKILL)  # workers are bound to this process by PyTorch
