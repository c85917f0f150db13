"""Optimizers that were not given to attach, and backwards of which no optimizer step follows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from relaxcomm import UsageError
from tests.engine.harness import in_process, on_gloo


def made_anew(world, algorithm):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        for step in range(60):
            if step == 5:
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer.zero_grad()
            model(torch.ones(2, 3)).square().sum().backward()
            try:
                optimizer.step()
            except UsageError as error:
                engine.close(average=False)
                return step, str(error)
    return None


@pytest.mark.parametrize("algorithm", ["bsp", {"name": "local_sgd", "steps": 2}, "diloco", "ssp"], ids=str)
def test_an_optimizer_that_is_made_anew_is_an_error_on_all_ranks(algorithm):
    for step, message in in_process(made_anew, 3, algorithm):
        assert step == 36
        assert "SGD has stepped the parameters 32 times in a row" in message
        assert "attach again with the new optimizer" in message


def inner_loop(world):
    """Reptile: an inner optimizer walks, and the attached one steps along the way it went."""
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    elsewhere = torch.optim.SGD(other.parameters(), lr=0.1)
    with world.attach(model, optimizer, {"algorithm": {"name": "local_sgd", "steps": 2}}) as engine:
        for _ in range(6):
            begun = [p.detach().clone() for p in model.parameters()]
            inner = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(10):
                inner.zero_grad()
                model(torch.ones(2, 3)).square().sum().backward()
                inner.step()
            for _ in range(40):
                elsewhere.step()
            with torch.no_grad():
                for p, start in zip(model.parameters(), begun, strict=True):
                    p.grad = 0.5 * (start - p)
                    p.copy_(start)
            optimizer.step()
        return engine.statistics["steps"], engine.statistics["synchronisations"]


def test_inner_loops_and_other_models_may_have_optimizers_of_their_own():
    assert in_process(inner_loop, 3) == [(6, 3)] * 3


def adapted(world, where: str, algorithm):
    """Fine-tuned a little in each evaluation, or an inner loop that exchanges nothing; then made anew."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:

        def walk():
            inner = torch.optim.SGD(model.parameters(), lr=0.01)
            for _ in range(40):
                inner.zero_grad()
                model(torch.ones(2, 3)).square().sum().backward()
                inner.step()

        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).square().sum().backward()
            optimizer.step()
            with getattr(engine, where)():
                walk()
        steps = engine.statistics["steps"]
        with pytest.raises(UsageError, match="32 times in a row"):
            walk()
        engine.close(average=False)
    return steps


@pytest.mark.parametrize("algorithm", ["bsp", {"name": "local_sgd", "steps": 2}], ids=str)
@pytest.mark.parametrize("where", ["averaged", "no_sync"])
def test_nobody_counts_the_steps_of_others_where_nothing_is_exchanged(where, algorithm):
    assert in_process(adapted, 3, where, algorithm) == [2] * 3


def penalised(world, logs: bool):
    """Without an optimizer each backward is a step, but not a look at the gradient of inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    draw = torch.Generator().manual_seed(10 + world.rank)
    with world.attach(model, None, {"algorithm": "bsp"}) as engine:
        for step in range(5):
            x = torch.randn(4, 3, generator=draw).requires_grad_()
            outputs = model(x)
            (slope,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
            model.zero_grad()
            (outputs.square().mean() + (slope.norm() - 1) ** 2).backward()
            if logs and world.rank == 0 and step == 2:
                torch.autograd.grad(model(x).sum(), x)
        return engine.statistics["steps"], engine.statistics["synchronisations"]


@pytest.mark.parametrize("logs", [False, True])
def test_gradients_of_inputs_are_no_step(logs):
    assert in_process(penalised, 3, logs) == [(5, 5)] * 3


@pytest.mark.ranks
def test_gradients_of_inputs_on_one_rank_are_no_step_on_gloo():
    assert on_gloo(penalised, 3, True) == [(5, 5)] * 3
