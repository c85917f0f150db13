"""bfloat16, float16 with a GradScaler, torch.compile: the same as with gradients averaged by hand."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import relaxcomm
from tests.gpu.places import DEVICE, HAS_GPU, Place, costly, run

pytestmark = pytest.mark.ranks
RANKS, STEPS, OVERFLOW = 2, 6, 2
SCALE = 2.0**10
COMPILER = "inductor" if HAS_GPU else "aot_eager"
AUTOCASTS = {"bfloat16 autocast": torch.bfloat16, "float16 with a scaler": torch.float16}
Average = Callable[[nn.Module], None]


def by_hand(model: nn.Module) -> None:
    """The mean gradient, over the host."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        total = parameter.grad.detach().float().cpu()
        dist.all_reduce(total)
        parameter.grad.copy_(total / dist.get_world_size())


def trained(place: Place, kind: str, config: Any) -> tuple[list[float], float]:
    """The parameters in the end and the scale; gradients are averaged by hand where there is no algorithm."""
    torch.manual_seed(0)
    device, autocast = place.device, AUTOCASTS.get(kind)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8)).to(device)
    if kind == "bfloat16 parameters":
        model.bfloat16()
    forward: Callable[[Tensor], Tensor] = model
    if kind == "compiled":
        torch._dynamo.reset()
        forward = torch.compile(model, backend=COMPILER)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(
        device.type, init_scale=SCALE, growth_interval=1000, enabled=autocast is torch.float16
    )
    attached = nullcontext()
    if config is not None:
        given = {"scaler": scaler} if scaler.is_enabled() else {}
        attached = relaxcomm.attach(model, optimizer, {"algorithm": config, "bucket_bytes": 1024}, **given)
    with attached:
        for step in range(STEPS):
            draw = torch.Generator().manual_seed(10 * step + place.rank)
            x = torch.randn(8, 16, generator=draw).to(device, next(model.parameters()).dtype)
            with torch.autocast(device.type, autocast) if autocast else nullcontext():
                loss = (forward(x) - 1).float().square().mean()
            if kind == "float16 with a scaler" and step == OVERFLOW and place.rank == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            if config is None:
                by_hand(model)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return torch.cat([p.detach().float().flatten() for p in model.parameters()]).tolist(), scaler.get_scale()


@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [
        ("float32", 1e-5),
        ("bfloat16 autocast", 1e-4),
        ("float16 with a scaler", 1e-4),
        ("bfloat16 parameters", 2e-2),
        costly("compiled", 1e-5),
    ],
)
def test_it_trains_as_by_hand(kind, tolerance):
    expected = run(trained, RANKS, kind, None, where=DEVICE)
    found = run(trained, RANKS, kind, "bsp", where=DEVICE)
    for (parameters, scale), (by_hand, scale_by_hand) in zip(found, expected, strict=True):
        assert parameters == pytest.approx(by_hand, rel=tolerance, abs=tolerance)
        assert scale == scale_by_hand == (SCALE / 2 if "scaler" in kind else 1.0)
    assert found[0] == found[1]


def test_the_kinds_differ():
    """What is compared would not be equal if autocast took no part."""
    (plain, _), *_ = run(trained, RANKS, "float32", "bsp", where=DEVICE)
    (low, _), *_ = run(trained, RANKS, "bfloat16 autocast", "bsp", where=DEVICE)
    assert max(abs(a - b) for a, b in zip(plain, low, strict=True)) > 1e-4
