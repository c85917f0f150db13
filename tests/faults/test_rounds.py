"""Federated clients go on without a rank that is lost, and with one that joins: their state is not lost."""

from __future__ import annotations

from collections import Counter

import pytest

from relaxcomm.plugin import RoundPlan
from tests.faults.elastic_job import Job
from tests.faults.small_script import BEGIN

pytestmark = [pytest.mark.ranks, pytest.mark.faults]

SIZE, CLIENTS, SAMPLES, MORE = 3, 6, 120, 4

SCRIPT = (
    BEGIN
    + """
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
            if [rank, round] == LOST and index == 2:
                end()
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
print(json.dumps({"since": since, "rounds": round, "ranks": ranks, "first": first, "last": last, "seen": seen,
                  "states": states, "sum": total()}))
"""
)


def run(algorithm, lost, device="cpu"):
    """What those ranks print that come to the end; a fourth process joins when one is lost."""
    config = {"algorithm": algorithm, "bucket_bytes": 2000, "timeout_seconds": 30}
    config |= {"membership": {"elastic": True}}
    job = Job(SCRIPT, SIZE, CONFIG=config, LOST=lost, MORE=MORE, DEVICE=device)
    job.ranks[lost[0]].process.join()
    job.join()
    return job.end(killed=lost[0])


def check(found, errors, lost):
    assert len({one["rounds"] for one in found}) == 1
    assert [one["ranks"] for one in found] == [SIZE] * SIZE
    assert f"worker {lost[0]} has ended without a message" in errors
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
    # Of so small a rate the loss stays small however many rounds there are before the newcomer is in.
    found, errors = run({"name": "fedavg", "server": "adam", "server_lr": 0.01}, [2, 2])
    check(found, errors, [2, 2])
    for round in range(3, found[0]["rounds"] + 1):
        assert read_in(found, round) == Counter(range(SAMPLES))
