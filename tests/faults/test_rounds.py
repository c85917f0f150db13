"""Federated clients go on without a rank that is lost, and with one that joins: their state is not lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from threading import Timer

import pytest
import torch

from relaxcomm.plugin import RoundPlan
from tests.ranks import free_port

pytestmark = [pytest.mark.ranks, pytest.mark.faults]

SIZE, CLIENTS, SAMPLES, MORE = 3, 6, 120, 4
LIMIT_SECONDS = 240  # alone 20; the one that joins starts a minute late on a busy machine

SCRIPT = """
import json, os, signal, sys, time, torch, relaxcomm

CONFIG, PORT, LOST, MORE, DEVICE = json.loads(sys.argv[1])
torch.set_num_threads(1)
if DEVICE == "cuda":
    sys.path.insert(0, ".")
    from tests.network.pretended_nccl import train_on_a_gpu

    train_on_a_gpu()
joins = "RELAXCOMM_JOIN" in os.environ
if not joins:
    store = torch.distributed.TCPStore("127.0.0.1", PORT, None, False)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
torch.manual_seed(7 * joins)
model = torch.nn.Sequential(torch.nn.Linear(20, 60), torch.nn.Tanh(), torch.nn.Linear(60, 1))
model.to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
x = torch.randn(120, 20, generator=torch.Generator().manual_seed(3))
data = torch.utils.data.TensorDataset(x, torch.tanh(x[:, :1]), torch.arange(len(x)))

def loss_on(x, y):
    return torch.nn.functional.mse_loss(model(x.to(DEVICE)), y.to(DEVICE))

first, seen, shrunk = loss_on(x, torch.tanh(x[:, :1])).item(), [], False
with relaxcomm.attach(model, optimizer, CONFIG) as engine:
    loader = engine.loader(data, batch_size=4)
    since = loader.epoch if joins else None
    while since is None or loader.epoch < since + MORE:
        round = loader.epoch
        for index, (inputs, targets, places) in enumerate(loader):
            if not joins and [rank, round] == LOST and index == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            loss_on(inputs, targets).backward()
            optimizer.step()
            seen.append((round, places.tolist()))
            time.sleep(0.01)
        shrunk = shrunk or engine.world.size < 3
        if since is None and shrunk and engine.world.size == 3:
            since = loader.epoch
    with engine.averaged():
        last = loss_on(x, torch.tanh(x[:, :1])).item()
    ranks = engine.world.size
    states = len([s for (state,) in engine.state_dict().values() for s in state["client_states"]])
flat = torch.cat([p.detach().flatten() for p in model.parameters()])
print(json.dumps({"since": since, "rounds": round, "ranks": ranks, "first": first, "last": last, "seen": seen,
                  "states": states, "sum": flat.double().sum().item()}))
"""


def run(algorithm, lost, device="cpu"):
    """What those ranks print that come to the end; a fourth process joins when one is lost."""
    port = free_port()
    store = torch.distributed.TCPStore("127.0.0.1", port, None, True, wait_for_workers=False)
    config = {"algorithm": algorithm, "bucket_bytes": 2000, "timeout_seconds": 30}
    config |= {"membership": {"elastic": True}}
    command = [sys.executable, "-c", SCRIPT, json.dumps([config, port, lost, MORE, device])]

    def start(more):
        env = {**os.environ, **more, "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True)

    ranks = [start({"RANK": str(rank), "WORLD_SIZE": str(SIZE)}) for rank in range(SIZE)]
    hanging = Timer(LIMIT_SECONDS, lambda: [rank.kill() for rank in ranks])
    hanging.start()
    while ranks[lost[0]].poll() is None:
        time.sleep(0.1)
    ranks.append(start({"RELAXCOMM_JOIN": f"127.0.0.1:{port}"}))
    said = [rank.communicate() for rank in ranks]
    hanging.cancel()
    del store
    left = [index for index in range(SIZE + 1) if index != lost[0]]
    errors = "\n".join(error for _, error in said)
    assert [ranks[index].returncode for index in left] == [0] * SIZE, errors
    return [json.loads(said[index][0]) for index in left], errors


def check(found, errors, lost):
    assert len({one["sum"] for one in found}) == 1
    assert len({one["rounds"] for one in found}) == 1
    assert [one["ranks"] for one in found] == [SIZE] * SIZE
    assert all(one["last"] < 0.5 * one["first"] for one in found)
    assert f"rank {lost[0]} has ended without a message" in errors
    assert "worker 3 joins: 3 ranks go on" in errors


def read_in(found, round):
    return Counter(place for one in found for at, places in one["seen"] for place in places if at == round)


@pytest.mark.parametrize(("rank", "device"), [(0, "cpu"), (1, "cpu"), (1, "cuda")])
def test_each_client_is_played_by_those_who_are_there(rank, device):
    plan = RoundPlan(epochs=2, fraction=0.5, clients=CLIENTS)
    plays = [round for round in range(2, 9) if any(k % SIZE == rank for k in plan.sampled(SIZE, round, 0))]
    lost = [rank, plays[0]]
    found, errors = run({"name": "fedavg", "epochs": 2, "fraction": 0.5, "clients": CLIENTS}, lost, device)
    check(found, errors, lost)
    last = found[0]["rounds"]
    for round in range(lost[1] + 1, last + 1):
        read = read_in(found, round)
        assert set(read.values()) == {2}, (round, read)
        assert len(read) == len(plan.sampled(SIZE, round, 0)) * SAMPLES // CLIENTS
    sampled = {client for round in range(last + 1) for client in plan.sampled(SIZE, round, 0)}
    assert sum(one["states"] for one in found) <= len(sampled)


def test_each_worker_is_a_client():
    found, errors = run({"name": "fedavg", "server": "adam", "server_lr": 0.1}, [2, 2])
    check(found, errors, [2, 2])
    for round in range(3, found[0]["rounds"] + 1):
        assert read_in(found, round) == Counter(range(SAMPLES))
