"""What ssp needs beside the model: its anchor, a shard, the answers that it kept, and what is on its way."""

from __future__ import annotations

import pytest

from tests.ranks import launch_script

SCRIPT = """
import torch, relaxcomm
from relaxcomm.step import parameter_exchange

parameter_exchange.REQUESTED_BYTES = 8 << 20  # beside a small model, as the real one beside large ones


def most():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))


def train(steps):
    open("/proc/self/clear_refs", "w").write("5")  # forget what was most
    for _ in range(steps):
        model(torch.randn(2, 1024)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return most()


torch.distributed.init_process_group("gloo")
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(10)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
train(2)
alone = train(2)
with relaxcomm.attach(model, optimizer, {"algorithm": "ssp", "bucket_bytes": 4 << 20}):
    together = train(6)
print((together - alone) / sum(parameter.nbytes for parameter in model.parameters()))
"""


@pytest.mark.slow
@pytest.mark.ranks
def test_ssp_needs_no_copies_but_those_that_mean_something():
    """1 is the anchor, 1 what came back, 2/3 a shard and its buffer, 2/3 answers, the rest on its way."""
    for rank in launch_script(SCRIPT, 3, timeout=100):
        assert rank.returncode == 0, rank.stderr
        assert float(rank.stdout.split()[-1]) < 8
