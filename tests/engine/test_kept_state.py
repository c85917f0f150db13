"""Models in bfloat16 and float16: what an algorithm keeps between steps loses no small change."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.engine.harness import engine_state, in_process
from tests.models import take_step

HALVES = [torch.bfloat16, torch.float16]
STEPS = 100
SMALL, NUMEL = 24, 96  # entries with a constant gradient, before those with noise, in each of two buckets


class Two(nn.Module):
    """Two vectors whose gradients the loss decides."""

    def __init__(self, dtype, value=0.0):
        super().__init__()
        self.vectors = nn.ParameterList([torch.full((NUMEL,), value, dtype=dtype) for _ in range(2)])

    def forward(self, gradients):
        return sum((vector * g).sum() for vector, g in zip(self.vectors, gradients, strict=True))


def noisy(step, rank, dtype):
    """Small entries are of 0.5 at first, which noise is sent before, and then so small that half a type's
    last bit there is more."""
    draw = torch.Generator().manual_seed(1000 * step + rank)
    gradients = torch.randn(2, NUMEL, generator=draw)
    gradients[:, :SMALL] = 1e-4 if step else 0.5
    return gradients.to(dtype)


def exchanged(world, algorithm, dtype, steps):
    """What the ranks' gradients came in as, what `.grad` was in all, and the residuals of this rank."""
    model = Two(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    came, sent = (torch.zeros(2, NUMEL, dtype=torch.float64) for _ in range(2))
    with world.attach(model, optimizer, {"algorithm": algorithm, "bucket_bytes": 2 * NUMEL}) as engine:
        for step in range(steps):
            gradients = noisy(step, world.rank, dtype)
            came += gradients
            model(gradients).backward()
            sent += torch.stack([vector.grad for vector in model.vectors])
            optimizer.step()
            optimizer.zero_grad()
        slots = [slots["compressor"] for _, _, slots in engine_state(engine)["slots"]]
    return came, sent, torch.stack([one["residual"] for one in slots])


def feedback(coder, exchange="all_gather"):
    return {
        "rules": [
            {"payload": "gradients", "compressor": {"error_feedback": coder}, "exchange": exchange},
        ]
    }


SENDERS = {
    "top_k": feedback({"top_k": {"density": 0.05, "scope": "bucket"}}),
    "gaussian_k": feedback({"gaussian_k": {"density": 0.05, "scope": "bucket"}}),
    "dgc": feedback({"dgc": {"density": 0.05, "sample": 0.5, "scope": "bucket"}}),
    "random_k": feedback({"random_k": {"density": 0.05, "scope": "bucket"}}, "all_reduce"),
}


@pytest.mark.every_other("name", "dtype")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", SENDERS)
def test_small_gradients_beside_noise_arrive(name, dtype):
    """What `.grad` was in all steps, and the mean residual, are the mean of what came in."""
    found = in_process(exchanged, 3, SENDERS[name], dtype, STEPS)
    came, kept = (torch.stack(parts).mean(0) for parts in list(zip(*found, strict=True))[::2])
    lost = came - found[0][1] - kept
    # Nothing but what each result was rounded by, once, to the type of `.grad`.
    assert abs(lost[:, :SMALL].mean()) < 0.1 * 1e-4 * STEPS
    assert abs(lost[:, SMALL:].mean()) < 0.05
    assert kept.dtype == torch.float32


def outer_run(world, rule, dtype, rounds):
    """A model at 1 that each round moves by one or two steps of its type, and the outer by a part of them."""
    model = Two(dtype, 1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    unit = torch.finfo(dtype).eps
    with world.attach(
        model, optimizer, {"algorithm": {"rules": [rule]}, "bucket_bytes": 2 * NUMEL}
    ) as engine:
        for _ in range(rounds):
            take_step(model(torch.full((2, NUMEL), unit * (1 + world.rank % 2), dtype=dtype)), optimizer)
        slots = engine_state(engine)["slots"]
        held = torch.stack([vector.detach().double() for vector in model.vectors])
    return held, [made["payload"]["anchor"] for _, _, made in slots if "anchor" in made.get("payload", {})]


OUTERS = {
    "sgd": {"sgd": {"lr": 0.05}},
    "momentum": {"sgd": {"lr": 0.01, "momentum": 0.9}},
    "nesterov": {"nesterov": {"lr": 0.01, "momentum": 0.9}},
    "slowmo": {"slowmo": {"lr": 0.01, "momentum": 0.9}},
    "adam": {"adam": {"lr": 1e-4, "tau": 1e-3}},
    "heloco": {"heloco": {"lr": 0.02, "momentum": 0.5, "weight": 1.0}},
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("outer", OUTERS)
def test_outer_steps_below_the_types_last_bit_add_up(outer, dtype):
    """As they do in float64, where the same deltas come in."""
    rounds, rule = 30, {"payload": "deltas", "exchange": "all_reduce", "outer": OUTERS[outer]}
    (held, anchors), *_ = in_process(outer_run, 3, rule, dtype, rounds)
    expected = in_process(reference_outer, 1, rule, dtype, rounds)[0]
    start = 1.0 - expected
    for anchor in anchors:
        torch.testing.assert_close(
            anchor.double(), torch.full_like(anchor.double(), expected), rtol=0, atol=0.01 * start
        )
    torch.testing.assert_close(held, torch.full_like(held, expected), rtol=0, atol=torch.finfo(dtype).eps)
    assert all(anchor.dtype == torch.float32 for anchor in anchors)


def reference_outer(world, rule, dtype, rounds):
    """The anchor when each round's mean delta is 4/3 of the type's last bit, in float64."""
    unit = torch.finfo(dtype).eps
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with world.attach(model, optimizer, {"algorithm": {"rules": [rule]}}):
        for _ in range(rounds):
            take_step(model.weight.sum() * unit * 4 / 3, optimizer)
    return float(model.weight.detach())
