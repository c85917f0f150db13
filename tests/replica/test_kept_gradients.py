"""Gradients that a training loop keeps are its own, and memory is not made anew where it keeps none."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from relaxcomm.replica.gradient_buffer import GradientBuffer
from tests.engine.harness import in_process, on_gloo, values

TASKS = (0, 1)


def surgery(world, kept, ddp: bool):
    """PCGrad: gradients of two tasks, each taken off the other where they conflict."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(world.rank)

    def train(call):
        for _ in range(5):
            x, found = torch.randn(4, 3, generator=draw, dtype=torch.float64), []
            for task in TASKS:
                optimizer.zero_grad()
                (call(x)[:, task] - (1 - 2 * task)).square().mean().backward()
                found.append([kept(parameter) for parameter in model.parameters()])
            for parameter, first, second in zip(model.parameters(), *found, strict=True):
                dot = (first * second).sum()
                parameter.grad = (first + second - dot.clamp(max=0) / second.square().sum() * second).view_as(
                    parameter
                )
            optimizer.step()

    if ddp:
        train(DistributedDataParallel(model))
    else:
        with world.attach(model, optimizer, {"algorithm": "bsp", "bucket_bytes": 150}):
            train(model)
    return values(model)


KEPT = {
    "itself": lambda parameter: parameter.grad,
    "detached": lambda parameter: parameter.grad.detach(),
    "flat": lambda parameter: parameter.grad.view(-1),
}


def cloned(parameter):
    return parameter.grad.clone()


@pytest.mark.parametrize("name", KEPT)
def test_gradients_of_two_tasks_are_apart(name):
    expected = in_process(surgery, 3, cloned, False)
    for found, wanted in zip(in_process(surgery, 3, KEPT[name], False), expected, strict=True):
        assert (found == wanted).all()


def itself(parameter):
    return parameter.grad


@pytest.mark.ranks
def test_gradient_surgery_is_that_of_ddp():
    theirs, ours = on_gloo(surgery, 3, itself, True), on_gloo(surgery, 3, itself, False)
    for found, wanted in zip(ours, theirs, strict=True):
        assert abs(found - wanted).max() < 1e-12


def by_optimizer(optimizer, parameters, kept):
    optimizer.zero_grad()


def by_hand(optimizer, parameters, kept):
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.detach_()
            parameter.grad.zero_()


def in_a_list(optimizer, parameters, kept):
    """The list is taken after the first step."""
    if not kept:
        kept.extend(parameter.grad for parameter in parameters if parameter.grad is not None)
    for gradient in kept:
        gradient.zero_()


def trained(world, algorithm, zero):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw, kept = torch.Generator().manual_seed(world.rank), []
    with world.attach(model, optimizer, {"algorithm": algorithm, "bucket_bytes": 150}):
        for _ in range(5):
            zero(optimizer, list(model.parameters()), kept)
            model(torch.randn(4, 3, generator=draw, dtype=torch.float64)).square().mean().backward()
            optimizer.step()
    return values(model)


@pytest.mark.parametrize("zero", [by_hand, in_a_list])
@pytest.mark.parametrize("algorithm", ["bsp", "topk_sgd"])
def test_gradients_are_zeroed_by_hand(algorithm, zero):
    expected = in_process(trained, 3, algorithm, by_optimizer)
    for found, wanted in zip(in_process(trained, 3, algorithm, zero), expected, strict=True):
        assert abs(found - wanted).max() < 1e-12


ALGORITHMS = [
    *("bsp", "topk_sgd", "dgc", "gaussiank_sgd", "powersgd", "gravac", "signsgd", "qadam", "ef21"),
    {"name": "delayed_sgd", "delay": 2},
    {"name": "selsync", "threshold": 0.1, "aggregate": "gradients"},
    {
        "rules": [
            {"payload": "gradients", "exchange": "scatter_gather", "compressor": {"quantize": {"bits": 8}}}
        ]
    },
]


@pytest.mark.every_other("algorithm", "to_none")
@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=str)
def test_memory_is_used_again(monkeypatch, algorithm, to_none):
    allocated = []

    class Counted(GradientBuffer):
        def _allocate(self):
            allocated.append(self)
            super()._allocate()

    monkeypatch.setattr("relaxcomm.step.plan.GradientBuffer", Counted)

    def program(world):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4))
        lr = 1e-3 if algorithm in ("qadam", "dgc") else 0.05
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        with world.attach(model, optimizer, {"algorithm": algorithm, "bucket_bytes": 100}):
            for _ in range(6):
                optimizer.zero_grad(set_to_none=to_none)
                model(torch.ones(2, 6)).square().sum().backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()

    in_process(program, 3)
    assert len(allocated) == len(set(map(id, allocated)))
    assert allocated
