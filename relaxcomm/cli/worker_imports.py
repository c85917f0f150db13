"""What local workers need, for the process that they are forked off; it ends when the launcher does.

It imports alone: a thread or a device that was opened here would be broken in what is forked.
"""

import importlib
import signal

from relaxcomm.cli.importing import importing

_NEEDED = (
    "torch._dynamo",  # every optimizer imports it, which takes as long as torch itself
    "relaxcomm.cli.launcher",
    "relaxcomm.cli.elastic_launcher",
    "relaxcomm.cli.job",
    "relaxcomm.training.trainer",  # what a worker uses is there when it begins
)

with importing():  # what they make is no garbage in a worker either, which would copy what it looks through
    for name in _NEEDED:
        importlib.import_module(name)

# As PyTorch's own workers are bound to this process by it.
importlib.import_module("torch.multiprocessing")._prctl_pr_set_pdeathsig(signal.SIGKILL)
