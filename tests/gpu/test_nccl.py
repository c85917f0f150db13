"""The same meaning over NCCL: operations, references, what is refused, ranks that are alone or slow."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
import torch.distributed as dist

import relaxcomm
from relaxcomm.network import TorchTransport
from relaxcomm.network.operations import (
    Agree,
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Label,
    Neighbors,
    Operation,
)
from tests import references
from tests.engine.harness import simulated_workers
from tests.gpu.places import GPU, HAS_GPU, Place, costly, flat, launch, run, told
from tests.models import CASES, make_optimizer

pytestmark = pytest.mark.ranks


def transport(place: Place) -> TorchTransport:
    return TorchTransport.of(None, device=place.device, backend="auto", timeout_seconds=30, debug=False)


def operations(place: Place):
    """What each operation brings back."""
    rank, size = place.rank, place.size
    made, right, left = transport(place), (rank + 1) % size, (rank - 1) % size
    row = torch.arange(4.0, device=place.device) + 10 * rank
    asked: dict[str, Operation] = {
        "sum": AllReduce(row.clone(), "sum"),
        "mean": AllReduce(row.clone(), "mean"),
        "max": AllReduce(row.clone(), "max"),
        "gather": AllGather(row.clone()),
        "all_to_all": AllToAll(torch.stack([row + 100 * peer for peer in range(size)])),
        "broadcast": Broadcast(row.clone(), root=1),
        "agree": Agree(torch.tensor([float(rank)]), "max"),
    }
    pending = {name: made.issue(one, Label(0, name, u)) for u, (name, one) in enumerate(asked.items())}
    found = {name: one.wait().tolist() for name, one in pending.items()}
    ring = Neighbors({right: row}, {left: torch.empty(4, device=place.device)})
    found["ring"] = made.issue(ring, Label(0, "ring")).wait()[left].tolist()
    made.meet("the end")
    made.close()
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_operations(size):
    rows = np.arange(4.0) + 10 * np.arange(size)[:, None]
    for rank, found in enumerate(run(operations, size)):
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


def training(place: Place, algorithm, steps: int):
    """The parameters after each step."""
    case, history = CASES["toy"], []
    model = case.model(seed=place.rank).to(place.device)
    optimizer = make_optimizer("momentum", model)
    with relaxcomm.attach(model, optimizer, {"algorithm": algorithm, "bucket_bytes": 512}):
        for step in range(steps):
            case.local_loss(model, step, place.rank).backward()
            optimizer.step()
            optimizer.zero_grad()
            history.append(flat(model))
    return history


REFERENCES = {
    "bsp": ("bsp", references.bsp, ()),
    "local_sgd": ({"name": "local_sgd", "steps": 5}, references.local_sgd, (5,)),
    "diloco": ({"name": "diloco", "steps": 7, "lr": 0.7, "momentum": 0.9}, references.diloco, (7, 0.7, 0.9)),
    "selsync": (
        {"name": "selsync", "threshold": 0.01, "window_steps": 3},
        references.selsync,
        (0.01, 3),
    ),
    "ssp": ({"name": "ssp", "staleness": 0}, references.bsp, ()),
}


def assert_follows(name: str, histories) -> None:
    """Hold every rank's parameters against what the paper's loop makes."""
    _, reference, arguments = REFERENCES[name]
    steps = len(histories[0])
    expected = reference(simulated_workers(len(histories), "momentum"), steps, *arguments)
    for rank, history in enumerate(histories):
        np.testing.assert_allclose(history, [rows[rank] for rows in expected[:steps]], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", ["bsp", "local_sgd", *map(costly, ("diloco", "selsync", "ssp"))])
def test_algorithms_equal_their_references(name):
    assert_follows(name, run(training, 3, REFERENCES[name][0], 20))


DEFAULTS = ("nccl", "cpu:gloo,cuda:nccl", "gloo") if HAS_GPU else ("gloo",)


def with_a_default_group(place: Place, backend: str, algorithm):
    """Training in which the user's own default group is there."""
    device = place.device if backend == "nccl" else None
    dist.init_process_group(backend, device_id=device)
    return training(place, algorithm, 12)


@pytest.mark.parametrize(
    ("backend", "name"),
    [(backend, name) for backend in DEFAULTS for name in ("bsp", "diloco")],
)
def test_the_default_group_is_the_users_own(backend, name):
    done = launch(with_a_default_group, 2, backend, REFERENCES[name][0])
    assert_follows(name, told(done))


def isolated(place: Place):
    """What came from the other of two, while a third has no neighbours."""
    made, came = transport(place), []
    for step in range(3):
        other = 1 - place.rank
        message = torch.full((4,), 10.0 * step + place.rank, device=place.device)
        swap = Neighbors({}, {})
        if place.rank < 2:
            swap = Neighbors({other: message}, {other: torch.empty(4, device=place.device)})
        got = made.issue(swap, Label(step, "gossip")).wait()
        came.append([one[0].item() for one in got.values()])
    made.meet("the end")
    made.close()
    return came


def test_gossip_goes_on_beside_a_rank_without_neighbours():
    assert run(isolated, 3) == [[[1.0], [11.0], [21.0]], [[0.0], [10.0], [20.0]], [[], [], []]]


def refused(place: Place, how: str):
    """What attach() says of a model or ranks that NCCL cannot connect."""
    model = torch.nn.BatchNorm1d(4).to(place.device)
    if how == "buffers":
        model.running_mean = torch.zeros(4)
    if how == "shared":
        os.environ.pop("NCCL_HOSTID", None)
    try:
        relaxcomm.attach(model, None, {"algorithm": "bsp", "timeout_seconds": 30})
    except relaxcomm.UsageError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("buffers", "running_mean on cpu"),
        pytest.param(
            "shared", "ranks [0, 1] on", marks=pytest.mark.skipif(not HAS_GPU, reason="needs a real GPU")
        ),
    ],
    ids=["buffers", "shared"],
)
def test_what_nccl_cannot_connect_is_refused_on_all_ranks(how, words):
    assert all(words in said for said in run(refused, 2, how))


def served(place: Place):
    """Parameters after SSP of which a fast rank takes the average while a slow one still waits."""
    case = CASES["toy"]
    model = case.model(seed=place.rank).to(place.device)
    optimizer = make_optimizer("momentum", model)
    compressor = {"error_feedback": {"compressor": {"top_k": {"density": 0.2}}}}
    algorithm = {"name": "ssp", "staleness": 2, "compressor": compressor}
    with relaxcomm.attach(model, optimizer, {"algorithm": algorithm, "bucket_bytes": 512}) as engine:
        for step in range(20):
            if place.rank == 1 and place.pretended is None:
                torch.cuda._sleep(20_000_000)
            case.local_loss(model, step, place.rank).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 9:
                with engine.averaged():
                    pass
    return flat(model)


def test_a_fast_rank_averages_while_a_slow_one_waits_for_its_service():
    first, *others = run(served, 3)
    for other in others:
        assert other == pytest.approx(first, rel=1e-6, abs=1e-7)


def alone(place: Place, algorithm):
    """Losses of training without any launcher."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        del os.environ[name]
    model = torch.nn.Linear(8, 4).to(place.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, losses = torch.randn(4, 8, device=place.device), []
    with relaxcomm.attach(model, optimizer, algorithm):
        for _ in range(4):
            loss = model(x).square().mean()
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return losses


@pytest.mark.parametrize("algorithm", ["bsp", costly("ssp"), costly("local_sgd")])
def test_one_process_trains_alone(algorithm):
    (losses,) = told(launch(alone, 1, algorithm, where=GPU))
    assert losses[-1] < losses[0]
