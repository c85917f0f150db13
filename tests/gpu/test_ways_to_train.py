"""Ways to train, over NCCL: `auto`, DDP's hook, sharded replicas, the command line; times on the network."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import relaxcomm
from relaxcomm import primitives
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.replica.gradient_buffer import GradientBuffer
from tests.engine import sharded
from tests.golden.cases import CASES, TOPOLOGIES
from tests.gpu.places import DEVICE, HAS_GPU, Place, costly, flat, launch, run, told

pytestmark = pytest.mark.ranks
STEPS = 30


def layers(width: int = 32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(4)))


def step_of(place: Place, forward: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    draw = torch.Generator().manual_seed(100 * step + place.rank)
    x = torch.randn(16, 32, generator=draw).to(place.device)
    loss = (forward(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


def chosen(place: Place):
    """What `auto` has chosen, the losses, and the model in the end."""
    warnings.simplefilter("ignore")
    model = layers().to(place.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with relaxcomm.attach(model, optimizer, {"algorithm": "auto"}) as engine:
        losses = [step_of(place, model, optimizer, step) for step in range(4 * STEPS)]
        choice = repr(engine.choice)
    return choice, losses, flat(model)


def test_auto_chooses_the_same_on_all_ranks_and_goes_on_to_train():
    found = run(chosen, 3)
    assert "Algorithm(" in found[0][0]
    for choice, losses, parameters in found:
        assert choice == found[0][0]
        assert losses[-1] < 0.9 * losses[0]
        np.testing.assert_allclose(parameters, found[0][2], rtol=1e-5, atol=1e-6)  # averaged at the end


def hooked_and_attached(place: Place):
    """Parameters of a model in DDP with the hook, and of one with an engine."""
    coder = primitives.error_feedback(compressor=primitives.top_k(density=0.1))
    dist.init_process_group("nccl" if place.device.type == "cuda" else "gloo")
    model = layers().to(place.device)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.003, gradient_as_bucket_view=True)
    ddp(torch.zeros(1, 32, device=place.device)).sum().backward()  # after which DDP makes its buckets
    model.zero_grad()
    ddp.register_comm_hook(None, relaxcomm.ddp_hook(coder))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        step_of(place, ddp, optimizer, step)
    other = layers().to(place.device)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.05)
    rule = {"payload": "gradients", "compressor": coder, "exchange": primitives.exchange_for(coder)}
    with relaxcomm.attach(other, optimizer, {"algorithm": {"rules": [rule]}, "bucket_bytes": 4096}):
        for step in range(STEPS):
            step_of(place, other, optimizer, step)
    return flat(model), flat(other)


@pytest.mark.parametrize("ranks", [costly(3)])
def test_ddps_hook_does_what_the_engine_does(ranks):
    found = told(launch(hooked_and_attached, ranks, where=DEVICE))
    for hooked, attached in found:
        np.testing.assert_allclose(hooked, found[0][0], rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(hooked, attached, rtol=1e-4, atol=1e-5)


def sharded_replica(place: Place, algorithm):
    """This rank's whole replica after each step: 2 replicas of 2 shards."""
    over = dist.init_device_mesh(place.device.type, (2, 2), mesh_dim_names=("replicate", "shard"))
    case = sharded.CASES["toy"]
    model = sharded.shard(case.model(seed=place.rank // 2).to(place.device), over["shard"])
    optimizer = sharded.momentum(list(model.parameters()))
    history = []
    with relaxcomm.attach(model, optimizer, {"algorithm": algorithm, "bucket_bytes": 8}):
        for step in range(sharded.STEPS):
            x, y = (one.to(place.device) for one in case.data(step, place.rank))
            case.loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            whole = [p.full_tensor().detach().flatten() for p in model.parameters()]
            history.append(torch.cat(whole).double().cpu().tolist())
    return history


@pytest.mark.parametrize("algorithm", [costly({"name": "local_sgd", "steps": 3}), costly("bsp")], ids=str)
def test_sharded_replicas_train_as_whole_ones(algorithm):
    found = told(launch(sharded_replica, 4, algorithm, where=DEVICE))
    expected = sharded.train_whole({"algorithm": algorithm, "bucket_bytes": 8})
    for rank, history in enumerate(found):
        np.testing.assert_allclose(history, expected[rank // 2][:-1], rtol=1e-6, atol=1e-8)


def measured(place: Place):
    """Seconds in which training has waited, in which something was on its way beside it, and all."""
    model = layers(256).to(place.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(8, 256, device=place.device)
    with relaxcomm.attach(model, optimizer, {"algorithm": "bsp", "bucket_bytes": 300_000}) as engine:
        begin, before = time.monotonic(), dict(engine.statistics)
        for _ in range(STEPS):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            next(model.parameters()).sum().item()  # the device has done all of the step
        whole, after = time.monotonic() - begin, engine.statistics
        names = ("exposed_communication_seconds", "hidden_communication_seconds")
        return [after[name] - before[name] for name in names], whole


def test_time_on_the_network_is_measured_by_the_device():
    for (exposed, hidden), whole in run(measured, 3, where=DEVICE):
        assert exposed > 0
        assert hidden >= 0
        assert exposed + hidden < whole


class OfTheHost:
    """A group of Gloo's, to whose sends and receives a GPU's memory is just an address."""

    def __init__(self, group):
        self._group = group

    def __getattr__(self, name):
        return getattr(self._group, name)

    def send(self, tensors, *more):
        assert not any(one.is_cuda for one in tensors)
        return self._group.send(tensors, *more)

    def recv(self, tensors, *more):
        assert not any(one.is_cuda for one in tensors)
        return self._group.recv(tensors, *more)


def over_gloo(place: Place, name: str):
    """The model after some steps."""
    model = layers().to(place.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {
        "algorithm": CASES[name],
        "topology": TOPOLOGIES.get(name, "complete"),
        "backend": "gloo",
        "bucket_bytes": 8192,
    }
    make = Rendezvous.gloo
    with (
        patch.object(Rendezvous, "gloo", lambda *those: OfTheHost(make(*those))),
        relaxcomm.attach(model, optimizer, config) as engine,
    ):
        for step in range(STEPS // 3):
            step_of(place, model, optimizer, step)
        engine.close(average=False)
    return flat(model)


@pytest.mark.parametrize("name", ["d_psgd", costly("hierarchical_local_sgd")])
def test_over_gloo_a_gpu_exchanges_with_neighbours_as_a_cpu_does(name):
    expected = run(over_gloo, 3, name, where="gloo")
    for found, right in zip(run(over_gloo, 3, name), expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-6)


def made_anew(place: Place, name: str):
    """Buffers for gradients that are made in steps 1 and 2, and in steps 3 to 10."""
    model, counts, make = layers().to(place.device), [], GradientBuffer._allocate
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(16, 32, device=place.device)

    def allocate(buffer: GradientBuffer) -> None:
        counts[-1] += 1
        make(buffer)

    with patch.object(GradientBuffer, "_allocate", allocate):
        counts.append(0)
        with relaxcomm.attach(model, optimizer, {"algorithm": name, "bucket_bytes": 8192}):
            for step in range(10):
                if step == 2:
                    counts.append(0)
                model(x).square().mean().backward()  # and the host is not held up by a look at the loss
                optimizer.step()
                optimizer.zero_grad()
    return counts


@pytest.mark.parametrize("name", ["bsp", costly("gaussiank_sgd"), costly("delayed_sgd")])
def test_gradients_keep_their_memory(name):
    for first, later in run(made_anew, 3, name):
        assert first > 0
        assert later == 0


QUICK = """
task: {charlm: {samples: 720, width: 32, layers: 1}}
algorithm: {name: local_sgd, steps: 4, compressor: minmax_uint8}
backend: BACKEND
workers: 1
output: out
"""


@pytest.mark.parametrize("backend", [costly("nccl" if HAS_GPU else "gloo")])
def test_the_command_line_trains(backend, tmp_path):
    (tmp_path / "run.yaml").write_text(QUICK.replace("BACKEND", backend))  # NCCL is refused without a GPU
    command = [sys.executable, "-m", "relaxcomm", "train", "run.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=80)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out" / "local_sgd.json").read_text())
    assert (record["steps"], record["synchronisations"]) == (45, 11)
    assert 0 < record["measure"] < 6  # bits; 7 if nothing was learned
    assert record["device"] == (torch.cuda.get_device_name() if HAS_GPU else "cpu")
