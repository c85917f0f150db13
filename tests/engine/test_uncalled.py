"""Loops that never call the model itself: `model.training_step(batch)`, `model.loss(batch)`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.engine.harness import World, in_process, on_gloo, values
from tests.models import CASES

STEPS, OVERFLOW_RANK = 9, 1
PHASES: dict[str, Any] = {
    "algorithm": {"name": "local_sgd", "steps": 2},
    "phases": [{"after_steps": 4, "algorithm": "bsp"}],
}


class Task(nn.Module):
    """Has its loss computed by forward, by parts of it, or by functions of its parameters alone."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.net = CASES["toy"].model(seed=seed)

    def forward(self, inputs, targets):
        return self.loss(inputs, targets)

    def loss(self, inputs, targets):
        return nn.functional.mse_loss(self.net(inputs), targets)

    def functional_loss(self, inputs, targets):
        hidden = torch.nn.functional.linear(inputs, self.net[0].weight, self.net[0].bias).tanh()
        return nn.functional.mse_loss(
            torch.nn.functional.linear(hidden, self.net[2].weight, self.net[2].bias), targets
        )


class Flat(nn.Module):
    """One parameter, and no part that could be called."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6, 4, dtype=torch.float64))

    def loss(self, inputs, targets):
        return nn.functional.mse_loss(inputs @ self.weight, targets)


def train(world: World, config, how: str, overflow_step: int | None = None):
    """Parameters after each step, and what runs then."""
    model = Task(world.rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10**6)
    compute = getattr(model, how) if how else model
    history, names = [], []
    with world.attach(model, optimizer, config, scaler=scaler) as engine:
        for step in range(STEPS):
            loss = compute(*CASES["toy"].data(step, world.rank))
            if world.rank == OVERFLOW_RANK and step == overflow_step:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            history.append(values(model))
            names.append(engine.algorithm.name)
        steps = engine.statistics["steps"]
    return [*history, values(model)], names, steps


@pytest.mark.parametrize("config", [PHASES, {"algorithm": "auto"}], ids=["phases", "auto"])
def test_a_switch_comes_where_it_does_when_the_model_is_called(config):
    called, uncalled = (in_process(train, 3, config, how) for how in ("", "loss"))
    for (history, names, steps), (same, same_names, _) in zip(called, uncalled, strict=True):
        assert names == same_names
        assert len(set(names)) == 2
        assert steps == STEPS
        np.testing.assert_array_equal(history, same)


@pytest.mark.ranks
def test_on_gloo():
    called, uncalled = (on_gloo(train, 3, PHASES, how) for how in ("", "loss"))
    for (history, names, steps), (same, _, _) in zip(called, uncalled, strict=True):
        assert names == ["local_sgd"] * 3 + ["bsp"] * 6
        assert steps == STEPS
        np.testing.assert_array_equal(history, same)


@pytest.mark.every_other("config", "overflow_step")
@pytest.mark.parametrize("overflow_step", [0, 1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    "config", [PHASES, {"algorithm": {"name": "local_sgd", "steps": 2}}, {"algorithm": "bsp"}]
)
def test_a_step_that_a_scaler_skips_is_seen_where_parts_are_called(config, overflow_step):
    """Also in the step after which everybody averages, or switches."""
    called, uncalled = (in_process(train, 3, config, how, overflow_step) for how in ("", "loss"))
    for (history, names, steps), (same, same_names, same_steps) in zip(called, uncalled, strict=True):
        assert (names[-1], steps) == (same_names[-1], same_steps)
        assert STEPS - steps in {0, int(overflow_step == STEPS - 1)}  # the last is closed with the engine
        np.testing.assert_array_equal(history[-1], same[-1])


@pytest.mark.parametrize("overflow_step", [1, 3])
def test_what_cannot_be_seen_in_time_is_an_error(overflow_step):
    """Nothing that a hook could hang on is called before backward: too late to average."""

    def program(world):
        model = Flat()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10**6)
        with world.attach(model, optimizer, PHASES, scaler=scaler):
            for step in range(STEPS):
                loss = model.loss(*CASES["toy"].data(step, world.rank))
                if world.rank == OVERFLOW_RANK and step == overflow_step:
                    loss = loss * float("inf")
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

    with pytest.raises(Exception, match="train through the model itself"):
        in_process(program, 3)


def without_optimizer(world: World, how: str):
    model = Task(world.rank)
    compute = getattr(model, how) if how else model
    config = {"algorithm": "bsp", "phases": [{"after_steps": 3, "algorithm": "signsgd"}]}
    with world.attach(model, None, config) as engine:
        for step in range(5):
            compute(*CASES["toy"].data(step, world.rank)).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.05 * parameter.grad
                    parameter.grad = None
        assert engine.algorithm.name == "signsgd"


def test_without_an_optimizer_the_next_forward_switches_or_there_is_an_error():
    in_process(without_optimizer, 3, "")
    with pytest.raises(Exception, match=r"due after step 3.*pass the optimizers"):
        in_process(without_optimizer, 3, "loss")
