"""The same meaning over NCCL: operations, algorithms, overflows, and a step that never waits for the GPU.

Several ranks share one GPU: each has an `NCCL_HOSTID` of its own, and they talk over the loopback interface.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from tests import references
from tests.engine.harness import simulated_workers
from tests.ranks import launch_script

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

HEAD = """
import json, os, sys
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
os.environ["NCCL_HOSTID"] = f"host{rank}"
os.environ["NCCL_SOCKET_IFNAME"] = "lo"
sys.path.insert(0, ".")
import torch, torch.distributed as dist
torch.cuda.set_device(0)
device = torch.device("cuda", 0)
dist.init_process_group("gloo")
import atexit
atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())
import relaxcomm
"""

OPERATIONS = """
from relaxcomm.network.operations import *
from relaxcomm.network import TorchTransport
transport = TorchTransport.of(None, device=device, backend="auto", timeout_seconds=30, debug=False)
row, right, left = torch.arange(4.0, device=device) + 10 * rank, (rank + 1) % size, (rank - 1) % size
operations = {
    "sum": AllReduce(row.clone(), "sum"),
    "mean": AllReduce(row.clone(), "mean"),
    "max": AllReduce(row.clone(), "max"),
    "gather": AllGather(row.clone()),
    "all_to_all": AllToAll(torch.stack([row + 100 * peer for peer in range(size)])),
    "broadcast": Broadcast(row.clone(), root=1),
    "agree": Agree(torch.tensor([float(rank)]), "max"),
}
pending = {n: transport.issue(op, Label(0, n, u)) for u, (n, op) in enumerate(operations.items())}
found = {name: one.wait().tolist() for name, one in pending.items()}
ring = Neighbors({right: row}, {left: torch.empty(4, device=device)})
ring = transport.issue(ring, Label(0, "ring")).wait()
found["ring"] = ring[left].tolist()
transport.meet("the end")
transport.close()
print(json.dumps(found))
"""

TRAINING = """
from tests.models import CASES, make_optimizer
ALGORITHM, STEPS, _ = SETTINGS
task = CASES["toy"]
model = task.model(seed=rank).to(device)
optimizer = make_optimizer("momentum", model)
history = []
with relaxcomm.attach(model, optimizer, {"algorithm": ALGORITHM, "bucket_bytes": 512}) as engine:
    for step in range(STEPS):
        x, y = (t.to(device) for t in task.data(step, rank))
        task.loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(torch.cat([p.detach().flatten() for p in model.parameters()]).cpu().tolist())
print(json.dumps(history))
"""

OVERFLOW = """
model = torch.nn.Linear(8, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=1000)
with relaxcomm.attach(model, optimizer, {"algorithm": "bsp"}, scaler=scaler) as engine:
    for step in range(6):
        draw = torch.Generator(device).manual_seed(10 * step + rank)
        x = torch.randn(16, 8, device=device, generator=draw)
        loss = model(x).square().mean() * (float("inf") if step == 2 and rank == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
flat = torch.nn.utils.parameters_to_vector(model.parameters())
print(json.dumps([scaler.get_scale(), flat.cpu().tolist()]))
"""

NO_WAIT = """
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
x = torch.randn(16, 64, device=device)
with relaxcomm.attach(model, optimizer, {"algorithm": "bsp", "bucket_bytes": 8192}) as engine:
    for step in range(6):
        torch.cuda.set_sync_debug_mode("error" if step > 2 else "default")  # after the layout is agreed
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.set_sync_debug_mode("default")
print(json.dumps("never waited"))
"""


def run(body, size):
    """What every rank printed last."""
    done = launch_script(HEAD + body, size, 180)
    assert all(process.returncode == 0 for process in done), "\n".join(process.stderr for process in done)
    return [json.loads(process.stdout.splitlines()[-1]) for process in done]


@pytest.mark.parametrize("size", [2, 3])
def test_operations(size):
    rows = np.arange(4.0) + 10 * np.arange(size)[:, None]
    for rank, found in enumerate(run(OPERATIONS, size)):
        expected = {
            "sum": rows.sum(0),
            "mean": rows.mean(0),
            "max": rows.max(0),
            "gather": rows,
            "all_to_all": rows + 100 * rank,
            "broadcast": rows[1],
            "agree": [size - 1],
            "ring": rows[(rank - 1) % size],
        }
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("algorithm", "reference", "arguments"),
    [
        ("bsp", references.bsp, ()),
        ({"name": "local_sgd", "steps": 5}, references.local_sgd, (5,)),
        ({"name": "diloco", "steps": 7, "lr": 0.7, "momentum": 0.9}, references.diloco, (7, 0.7, 0.9)),
        ({"name": "selsync", "threshold": 0.01, "window_steps": 3}, references.selsync, (0.01, 3)),
        ({"name": "ssp", "staleness": 0}, references.bsp, ()),
    ],
)
def test_algorithms_equal_their_references(algorithm, reference, arguments):
    optimizer = "momentum"
    expected = reference(simulated_workers(3, optimizer), 20, *arguments)
    settings = f"SETTINGS = {[algorithm, 20, False]!r}\n"
    for rank, history in enumerate(run(settings + TRAINING, 3)):
        np.testing.assert_allclose(history, [rows[rank] for rows in expected[:20]], rtol=1e-7, atol=1e-9)


def test_an_overflow_on_one_rank_is_skipped_by_all():
    (scale, first), *others = run(OVERFLOW, 2)
    assert scale == 2.0**9
    assert np.isfinite(first).all()
    for other_scale, parameters in others:
        assert other_scale == scale
        np.testing.assert_array_equal(parameters, first)


def test_the_step_never_waits_for_the_gpu():
    assert run(NO_WAIT, 2) == ["never waited"] * 2
