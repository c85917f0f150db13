"""Processes that a script forks itself, also while an engine of its own is open, train as any others."""

from __future__ import annotations

import pytest

from tests.ranks import launch_script

pytestmark = pytest.mark.ranks

SCRIPT = """
import os, sys, tempfile
import torch, torch.distributed as dist, torch.multiprocessing as mp
import relaxcomm
from benchmarks.ports import free_port

def make(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 11), torch.nn.Tanh(), torch.nn.Linear(11, 4))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)

def step(model, optimizer, inputs):
    model(inputs).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

def work(rank, size, port, folder):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    model, optimizer = make(rank)
    config = {"algorithm": {"name": "local_sgd", "steps": 2}, "bucket_bytes": 256}
    with relaxcomm.attach(model, optimizer, config) as engine:
        for _ in range(4):
            step(model, optimizer, torch.randn(5, 6))
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.save((engine.statistics["synchronisations"], flat), f"{folder}/{rank}.pt")
    dist.destroy_process_group()

def forked():
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(work, (3, free_port(), folder), nprocs=3, start_method="fork")
        saved = [torch.load(f"{folder}/{rank}.pt") for rank in range(3)]
    assert [count for count, _ in saved] == [2, 2, 2]
    assert all(torch.equal(flat, saved[0][1]) for _, flat in saved)

for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
    del os.environ[name]
forked()
model, optimizer = make(0)
with tempfile.TemporaryDirectory() as output:
    config = {"algorithm": "local_sgd", "metrics": {"port": 0}, "output": output}
    with relaxcomm.attach(model, optimizer, config) as engine:
        step(model, optimizer, torch.ones(2, 6))
        forked()
        for inputs in torch.utils.data.DataLoader(torch.ones(8, 6), batch_size=2, num_workers=2):
            step(model, optimizer, inputs)
        assert engine.statistics["steps"] == 5
forked()
print("all")
"""


def test_forked_ranks_beside_an_engine_of_the_parents():
    (done,) = launch_script(SCRIPT, 1)
    assert done.stdout == "all\n", done.stderr
