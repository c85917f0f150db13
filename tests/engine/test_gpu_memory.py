"""What a GPU holds from step to step is what `show` says, and what is kept for a moment only is gone."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import relaxcomm
from relaxcomm.config.grammar import parse_algorithm
from relaxcomm.network import in_process
from relaxcomm.network.byte_counters import EVALUATION
from relaxcomm.network.transport import Membership
from relaxcomm.planner.footprint import footprint
from relaxcomm.step.world import World
from relaxcomm.tensors.items import Item
from relaxcomm.testing import PretendGpu

RANKS, LAYERS, SIZE = 2, 4, 64
MODEL_BYTES = 4 * LAYERS * SIZE * SIZE


@pytest.fixture(autouse=True)
def _several_ranks(monkeypatch):
    # A pretended GPU has no autograd thread that ranks would share.
    monkeypatch.setattr(in_process, "tensors_of", lambda operation: [])


def make_model(dtype=torch.float32):
    return nn.Sequential(*(nn.Linear(SIZE, SIZE, bias=False) for _ in range(LAYERS))).to(dtype)


def on_gpu():
    """Bytes of all tensors that are there, in models; of large ones, not flags and tables."""
    gc.collect()
    tensors = [one for one in gc.get_objects() if type(one) in (torch.Tensor, nn.Parameter) and one.is_cuda]
    storages = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in tensors}
    return sum(size for size in storages.values() if size >= SIZE * SIZE) / MODEL_BYTES


def counted(engine):
    """What is there, found by the first rank while the others wait."""
    bound = engine._session.bound
    bound.meet("all have come here")
    found = on_gpu() if bound.world.rank == 0 else 0.0
    bound.meet("all is counted")
    return found


def held(group, gpu, algorithm, dtype):
    """What all ranks hold between two steps, beside a state, and after it was loaded; what a loop keeps."""
    with gpu.in_thread():
        model = make_model(dtype).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        settings = {"algorithm": algorithm, "bucket_bytes": 2 * SIZE * SIZE * 4}
        with relaxcomm.attach(model, optimizer, settings, process_group=group) as engine:
            for _ in range(4):
                model(torch.randn(2, SIZE, device="cuda", dtype=dtype)).float().square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            between = counted(engine)
            state = engine.state_dict()
            saved = counted(engine)
            engine.load_state_dict(state)
            loaded = counted(engine)
            del state
        return (between, saved, loaded), (model, engine)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in ("bsp", "local_sgd", "choco_sgd", "diloco")),
        ("topk_sgd", torch.bfloat16),
    ],
)
def test_between_steps_a_gpu_holds_what_show_says_and_nothing_of_a_closed_engine(name, dtype):
    short = {"steps": 2} if name in ("local_sgd", "diloco") else {}
    algorithm = parse_algorithm({"name": name, **short})
    items = [Item(key, p.detach()) for key, p in make_model(dtype).named_parameters()]
    needed = footprint(algorithm, items, Membership(0, RANKS), relaxcomm.topology.complete())
    with PretendGpu() as gpu:
        found = relaxcomm.simulate(lambda group: held(group, gpu, algorithm, dtype), RANKS)
        closed = on_gpu()
    (between, saved, loaded), _ = found[0]
    numel = RANKS * LAYERS * SIZE * SIZE
    expected = (dtype.itemsize + needed.kept + needed.buffers) * numel / MODEL_BYTES
    assert between == pytest.approx(expected, rel=0.02)
    assert saved == pytest.approx(between, rel=0.02)
    assert loaded <= 1.02 * between
    assert closed == pytest.approx(dtype.itemsize * numel / MODEL_BYTES, rel=0.02)


def test_few_buckets_of_a_mean_are_on_their_way_at_once(monkeypatch):
    """Each is a copy of parameters, of 16 bits in float32."""
    under_way, most = [0] * RANKS, [0] * RANKS
    issue, receive = World.issue, World.receive

    def issued(world, operation, label):
        under_way[world.rank] += label.rule == EVALUATION
        most[world.rank] = max(most[world.rank], under_way[world.rank])
        return issue(world, operation, label)

    def received(world, pending):
        under_way[world.rank] = max(0, under_way[world.rank] - 1)
        return receive(world, pending)

    monkeypatch.setattr(World, "issue", issued)
    monkeypatch.setattr(World, "receive", received)

    def worker(group):
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(12)))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        settings = {"algorithm": "local_sgd", "bucket_bytes": 64}
        with relaxcomm.attach(model, optimizer, settings, process_group=group) as engine, engine.averaged():
            pass

    relaxcomm.simulate(worker, RANKS)
    assert 1 < max(most) < 8


def test_nothing_is_held_of_an_engine_that_failed_with_an_average_on_its_way():
    def worker(group):
        with gpu.in_thread():
            model = make_model().to("cuda")
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            late = {"name": "local_sgd", "steps": 2, "delay": 2}
            engine = relaxcomm.attach(model, optimizer, {"algorithm": late}, process_group=group)
            for _ in range(2):
                model(torch.randn(2, SIZE, device="cuda")).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            with pytest.raises(ZeroDivisionError), engine:
                engine.together(lambda: 1 / 0)
            return model, engine

    with PretendGpu() as gpu:
        kept = relaxcomm.simulate(worker, RANKS)
        closed = on_gpu()
    assert closed == pytest.approx(len(kept), rel=0.02)
