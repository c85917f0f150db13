"""What steps ask of a GPU: the host does not wait, whatever the algorithm, and results are the CPU's."""

from __future__ import annotations

import io
import itertools
import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import relaxcomm
from relaxcomm.composition.exchange_cost import Speeds
from relaxcomm.engine.switching import first_steps
from relaxcomm.network import in_process
from relaxcomm.step import optimizer_states, used_parameters
from relaxcomm.testing import PretendGpu
from tests.engine.harness import engine_state
from tests.golden.cases import CASES, TOPOLOGIES, WITH_ADAM

RANKS, WARM_STEPS, STEPS = 3, 5, 10

SERVED = ("ad_psgd", "decoupled_diloco", "heloco", "ssp", "async_model_average")
"""Their messages go over the host, to services."""
DECIDES_ON_HOST = {
    "adaptive_local_sgd": 2,  # a batch size
    "fedavg": 2,  # whether any client has trained in the round
    "gravac": 1,  # how many entries are sent
    "selsync": 2,  # whether to exchange
}
"""Waits that a rank may have in a step."""
ANOTHER_ORDER = 1e-6
DIFFER = (*SERVED, "qsgd", "terngrad", "dcd_psgd", "low_precision_decentralized", "gaussiank_sgd")
"""They go by time, or kernels draw other numbers than the CPU, or take their threshold from a histogram."""


@pytest.fixture(autouse=True)
def _several_ranks(monkeypatch):
    # A pretended GPU has no autograd thread that ranks would share.
    monkeypatch.setattr(in_process, "tensors_of", lambda operation: [])


class Wide(nn.Sequential):
    """A small model of so many layers, in two buckets or more."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__(*(nn.Linear(8, 8) for _ in range(layers)))


def train(name, gpu=None, *, layers=4, bucket_bytes=600, spoil=math.inf):
    """The parameters of every rank in the end; of a GPU the work of the steps after the first ones."""
    device = "cpu" if gpu is None else "cuda"
    config = {
        "algorithm": CASES[name],
        "bucket_bytes": bucket_bytes,
        "topology": TOPOLOGIES.get(name, "complete"),
    }

    def worker(group):
        with nullcontext() if gpu is None else gpu.in_thread():
            torch.manual_seed(0)
            model = Wide(layers).to(device)
            momentum = 0.9 if name.endswith("moments") else 0.0
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum)
            if name in WITH_ADAM:  # a large eps, so that rounding is no step
                optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)
            draw = torch.Generator().manual_seed(group.rank())
            with relaxcomm.attach(model, optimizer, config, process_group=group):
                for step in range(STEPS):
                    if step == WARM_STEPS and gpu is not None and group.rank() == 0:
                        gpu.work.clear()
                    x = torch.randn(4, 8, generator=draw)
                    x = x if gpu is None else x.pin_memory().to(device, non_blocking=True)
                    (
                        model(x).square().mean() * (math.nan if step == spoil and group.rank() else 1)
                    ).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                waits, launches = list(gpu.work.waits) if gpu else [], gpu.work.launches if gpu else 0
            return torch.cat([p.detach().cpu().flatten() for p in model.parameters()]), waits, launches

    results = relaxcomm.simulate(worker, RANKS)
    return [parameters for parameters, _, _ in results], max((r[1] for r in results), key=len), results[0][2]


NAMES = [name for name in CASES if not name.startswith(("fedavg", "adaptive_local_sgd"))]


@pytest.mark.every_other("name", of=3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_the_host_waits_for_nothing_but_decisions_and_results_are_the_cpus(name):
    expected, _, _ = train(name)
    with PretendGpu() as gpu:
        found, waits, _ = train(name, gpu)
    family = name.split()[0]
    if family not in SERVED:
        allowed = DECIDES_ON_HOST.get(family, 0) * RANKS * (STEPS - WARM_STEPS)
        assert len(waits) <= allowed, waits[:5]
    if family not in DIFFER:
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=ANOTHER_ORDER)
    assert all(bool(one.isfinite().all()) for one in found)


def plain_launches(layers):
    """Those of the same loop without an engine, on all ranks."""
    with PretendGpu() as gpu:
        model = Wide(layers).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(STEPS):
            if step == WARM_STEPS:
                gpu.work.clear()
            model(torch.randn(4, 8, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return RANKS * gpu.work.launches


@pytest.mark.every_other("name", of=3)
@pytest.mark.parametrize(
    "name", ["bsp", "local_sgd", "d_psgd", "gaussiank_sgd", "signsgd", "topk_sgd", "qsgd"]
)
def test_launches_do_not_grow_with_the_number_of_tensors(name):
    def launched(layers):
        with PretendGpu() as gpu:
            return train(name, gpu, layers=layers, bucket_bytes=1 << 20)[2] - plain_launches(layers)

    few, many = launched(2), launched(8)
    assert 0 < many < 1.2 * few


def test_what_says_which_gradients_there_are_takes_no_launch_a_bucket(monkeypatch):
    found = []

    def counted(part):
        def run(*given):
            before = gpu.work.launches
            result = part(*given)
            found[-1] += gpu.work.launches - before
            return result

        return run

    for part in ("ask", "expose"):
        monkeypatch.setattr(used_parameters, part, counted(getattr(used_parameters, part)))
    for layers in (2, 8):
        found.append(0)
        with PretendGpu() as gpu:
            model = Wide(layers).to("cuda")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            with relaxcomm.attach(model, optimizer, {"algorithm": "powersgd", "bucket_bytes": 300}):
                for _ in range(3):
                    model(torch.ones(4, 8, device="cuda")).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
    assert 0 < found[0] == found[1]


@pytest.mark.parametrize("algorithm", ["bsp", {"name": "local_sgd", "steps": 2}], ids=["equal", "averaged"])
def test_waits_of_an_evaluation_grow_neither_with_tensors_nor_with_buckets(algorithm):
    found = []
    for layers in (2, 8):
        with PretendGpu() as gpu:
            model = Wide(layers).to("cuda")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            config = {"algorithm": algorithm, "bucket_bytes": 300}
            with relaxcomm.attach(model, optimizer, config) as engine:
                gpu.work.clear()
                with engine.averaged():
                    found.append(len(gpu.work.waits))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["local_sgd", "d_psgd", "topk_sgd", "ef_signsgd", "delayed_sgd"])
def test_what_is_not_finite_is_left_out_and_is_an_error_two_steps_later(name):
    with PretendGpu() as gpu, pytest.raises(relaxcomm.NonFiniteError) as raised:
        train(name, gpu, spoil=5)
    assert "on rank 1" in str(raised.value)
    assert "up to 2 steps late" in str(raised.value)


def test_so_is_a_late_gradient_that_lands_when_the_run_ends():
    with PretendGpu() as gpu, pytest.raises(relaxcomm.NonFiniteError, match=r"the gradient of .* on rank 1"):
        train("delayed_sgd", gpu, layers=2, spoil=STEPS - 1)


def go_on(algorithm, state, steps, gpu=None):
    """Train from a state (None: from the beginning); the parameters of every rank and the state then."""
    device = "cpu" if gpu is None else "cuda"

    def worker(group):
        with nullcontext() if gpu is None else gpu.in_thread():
            torch.manual_seed(0)
            model = Wide().to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
            config = {"algorithm": algorithm, "bucket_bytes": 600}
            with relaxcomm.attach(model, optimizer, config, process_group=group) as engine:
                if state is not None:
                    parts = torch.load(io.BytesIO(state[group.rank()]), map_location="cpu", weights_only=True)
                    for one, part in zip((model, optimizer, engine), parts, strict=True):
                        one.load_state_dict(part)
                draw = torch.Generator().manual_seed(group.rank())
                for _ in range(steps):
                    model(torch.randn(4, 8, generator=draw).to(device)).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                saved = io.BytesIO()
                torch.save([one.state_dict() for one in (model, optimizer, engine)], saved)
                engine.close(average=False)
            return [p.detach().cpu() for p in model.parameters()], saved.getvalue()

    return zip(*relaxcomm.simulate(worker, RANKS), strict=True)


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "local_sgd", "steps": 3, "delay": 2},
        {"name": "streaming_diloco", "steps": 4, "fragments": 2, "delay": 2},
        "delayed_sgd",
        {"name": "gaussiank_sgd", "density": 0.3},
    ],
    ids=["late averages", "late fragments", "late gradients", "residuals"],
)
@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_that_was_read_on_the_host_goes_on_on_a_gpu(algorithm):
    _, state = go_on(algorithm, None, 4)
    expected, _ = go_on(algorithm, state, 4)
    with PretendGpu() as gpu:
        found, _ = go_on(algorithm, state, 4, gpu)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-3 if "gaussiank" in str(algorithm) else 1e-6)


def test_auto_prices_coding_as_the_slowest_gpu_does(monkeypatch):
    """Each rank measures on its own; all take the same price, the highest, of each coder."""
    taken = itertools.count(1)
    devices = []

    def measure(pairs, workers, device):
        devices.append(device.type)
        return Speeds(coding_base_seconds=1e-3 * next(taken), coding_entry_seconds=1e-9)

    def worker(group):
        with gpu.in_thread():
            model = Wide().to("cuda")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            with relaxcomm.attach(model, optimizer, {"algorithm": "auto"}, process_group=group) as engine:
                for _ in range(9):
                    model(torch.ones(4, 8, device="cuda")).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                return engine_state(engine)["measured"]["coding"], engine.choice

    monkeypatch.setattr(first_steps, "measure_coders", measure)
    with PretendGpu() as gpu:
        (coding, choice), *others = relaxcomm.simulate(worker, RANKS)
    assert others == [(coding, choice)] * (RANKS - 1)
    assert devices == ["cuda"] * 2 * RANKS
    assert max(base for base, _ in coding) == pytest.approx(1e-3 * 2 * RANKS)


def test_a_scalars_count_of_steps_is_no_moment():
    """Adam keeps it on the host; moments are averaged when replicas are to be equal."""

    def worker(group):
        with gpu.in_thread():
            model = nn.Linear(4, 4)
            model.scale = nn.Parameter(torch.ones(()))
            model.to("cuda")
            optimizer = torch.optim.Adam(model.parameters())
            algorithm = {"name": "local_sgd", "steps": 2}
            with relaxcomm.attach(model, optimizer, {"algorithm": algorithm}, process_group=group) as engine:
                for step in range(6):
                    if step == 4:
                        engine.switch("bsp")
                    (model(torch.randn(4, 4, device="cuda")) * model.scale).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                replica = engine._session.bound.replica
                names = [item.name for item in replica.parameters]
                averaged = [one.name for one in optimizer_states.moments(replica, names)]
            return model.scale.item(), averaged

    with PretendGpu() as gpu:
        (scale, averaged), *others = relaxcomm.simulate(worker, RANKS)
    assert all(other == (scale, averaged) for other in others)
    assert {name.split(" of ")[0] for name in averaged} == {"exp_avg", "exp_avg_sq"}
    assert "exp_avg of scale" in averaged
