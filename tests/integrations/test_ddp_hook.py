"""Compressors inside DistributedDataParallel: many buckets on gloo, and the engine's results."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import relaxcomm
from relaxcomm import primitives
from relaxcomm.config import registry
from relaxcomm.integrations.ddp import _is_good
from relaxcomm.testing import PretendGpu
from tests.engine.harness import on_gloo, values

STEPS = 20
COMPRESSORS = {
    "identity": "identity",
    "cast": {"cast": {"dtype": "bfloat16"}},
    "top_k": {"error_feedback": {"top_k": {"density": 0.1}}},
    "random_k": {"error_feedback": {"random_k": {"density": 0.2}}},
    "gaussian_k": {"error_feedback": {"gaussian_k": {"density": 0.1}}},
    "dgc": {"error_feedback": {"dgc": {"density": 0.1}}},
    "count_sketch": {"count_sketch": {"size": 100}},
    "power_sgd": {"error_feedback": {"power_sgd": {"matrix_rank": 2}}},
    "sign": {"error_feedback": "sign"},
    "clip_norm": {"clip_norm": {"max_norm": 0.1}},
    "quantize": {"quantize": {"bits": 4, "block_size": 64}},
    "minmax_uint8": "minmax_uint8",
    "chain": {"error_feedback": {"chain": [{"top_k": {"density": 0.2}}, {"quantize": {"bits": 8}}]}},
    "ef21": {"ef21": {"top_k": {"density": 0.2}}},
}


def make_model():
    """Three matrices: with a small cap, each lies in a bucket of its own, in DDP and in the engine."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(12, 16, bias=False),
        nn.Tanh(),
        nn.Linear(16, 16, bias=False),
        nn.Tanh(),
        nn.Linear(16, 4, bias=False),
    ).double()


def batch(step, rank):
    draw = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(16, 12, generator=draw).double()
    return x, torch.stack([x.sum(1), x[:, 0], -x[:, 1], x[:, 2] * x[:, 3]], dim=1)


def train(model, forward, rank, steps=STEPS):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for step in range(steps):
        x, y = batch(step, rank)
        (forward(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def both(world, spelt, steps=STEPS):
    compressor = relaxcomm.config.grammar.parse_primitive("compressor", spelt)
    hooked = make_model()
    ddp = DistributedDataParallel(hooked, bucket_cap_mb=0.0003, gradient_as_bucket_view=True)
    ddp(batch(0, world.rank)[0]).square().mean().backward()  # after the first backward DDP makes its buckets
    hooked.zero_grad()
    ddp.register_comm_hook(None, relaxcomm.ddp_hook(compressor))
    train(hooked, ddp, world.rank, steps)
    attached = make_model()
    optimizer = torch.optim.SGD(attached.parameters(), lr=0.02, momentum=0.9)
    rule = {"payload": "gradients", "compressor": spelt, "exchange": primitives.exchange_for(compressor)}
    settings = {"algorithm": {"rules": [rule]}, "bucket_bytes": 600}
    with relaxcomm.attach(attached, optimizer, settings):
        for step in range(steps):
            x, y = batch(step, world.rank)
            (attached(x) - y).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return values(hooked), values(attached), len(ddp.reducer._get_zeros_like_grad_buckets())


def test_most_compressors_are_here():
    wrappers = {"error_feedback", "momentum_correction", "switch"}
    drawn = {"qsgd", "terngrad"}  # by place, which DDP's first buckets change
    others = {"chunk_top_k", "dct_top_k", "adaptive_top_k"}
    found = registry.primitives()["compressor"].items()
    bundled = {name for name, made in found if made.__module__.startswith("relaxcomm.")}
    assert {*COMPRESSORS} | wrappers | drawn | others >= bundled


QUICK = {"top_k", "power_sgd"}


@pytest.mark.ranks
@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in COMPRESSORS],
)
def test_three_ranks_and_buckets_agree_with_the_engine(name):
    found = on_gloo(both, 3, COMPRESSORS[name])
    for hooked, attached, buckets in found:
        assert buckets == 3
        np.testing.assert_array_equal(hooked, found[0][0])
        np.testing.assert_allclose(hooked, attached, rtol=1e-9, atol=1e-3 if name == "cast" else 1e-12)


def residual_moves(world):
    """DDP rebuilds its buckets after the first backward: what that one left out must not be lost."""
    model = nn.ModuleList([nn.Linear(8, 8, bias=False) for _ in range(4)])
    for layer in model:
        nn.init.zeros_(layer.weight)
    ddp = DistributedDataParallel(Used(model), bucket_cap_mb=0.0003)
    compressor = primitives.error_feedback(compressor=primitives.sign())
    ddp.register_comm_hook(None, relaxcomm.ddp_hook(compressor))
    total = torch.zeros(4 * 64)
    for step in range(400):
        ddp.zero_grad()
        (ddp() * (0.0 if step else 1.0)).backward()
        total += torch.cat([layer.weight.grad.reshape(-1) for layer in model])
    return total.tolist()


class Used(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self):
        weights = [torch.arange(64.0).view(8, 8) + 64 * index for index in range(4)]
        used = zip((2, 0, 3, 1), weights, strict=True)
        return sum((self.layers[index].weight * weight).sum() for index, weight in used)


@pytest.mark.slow
@pytest.mark.ranks
def test_residuals_follow_rebuilt_buckets():
    (first, *_) = on_gloo(residual_moves, 3)
    expected = np.concatenate([np.arange(64.0) + 64 * place for place in (1, 3, 0, 2)])
    np.testing.assert_allclose(first, expected, atol=2.0)


def refused(world):
    words = []
    for exchange in (primitives.gossip(), primitives.server(staleness=1)):
        try:
            relaxcomm.ddp_hook(primitives.identity(), exchange=exchange)
        except relaxcomm.CompositionError as error:
            words.append(str(error))
    return words


def test_exchanges_that_part_replicas_are_refused():
    found = refused(None)
    assert len(found) == 2
    assert all("would part" in words for words in found)


def unscaled(world):
    """A GradScaler whose scale changes must not change what a residual means."""
    torch.manual_seed(0)
    model = nn.Linear(6, 6, bias=False)
    ddp = DistributedDataParallel(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    compressor = primitives.error_feedback(compressor=primitives.top_k(density=0.3))
    ddp.register_comm_hook(None, relaxcomm.ddp_hook(compressor, scaler=scaler))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(12):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step + dist.get_rank()))
        scaler.scale(ddp(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return values(model), scaler.get_scale()


@pytest.mark.ranks
def test_a_scaler_is_followed():
    found = on_gloo(unscaled, 3)
    assert found[0][1] > 8.0
    np.testing.assert_array_equal(found[0][0], found[1][0])


def test_a_gpu_is_asked_once_whether_the_averages_are_finite():
    launches = []
    for buckets in (2, 9):
        with PretendGpu() as gpu:
            results = [torch.ones(3, device="cuda") for _ in range(buckets)]
            gpu.work.clear()
            assert _is_good(results)
        launches.append(gpu.work.launches)
    assert launches[0] == launches[1]


def shared(world):
    """One hook for two models."""
    hook = relaxcomm.ddp_hook(primitives.error_feedback(compressor=primitives.sign()))
    first, second = (DistributedDataParallel(nn.Linear(3, 3)) for _ in range(2))
    for ddp in (first, second):
        ddp.register_comm_hook(None, hook)
    for _ in range(2):  # after the first DDP makes other buckets, of the same parameters
        first(torch.ones(1, 3)).sum().backward()
    with pytest.raises(relaxcomm.UsageError, match="make one with ddp_hook for each model"):
        second(torch.ones(1, 3)).sum().backward()


@pytest.mark.ranks
def test_a_hook_of_two_models_is_refused():
    on_gloo(shared, 3)
