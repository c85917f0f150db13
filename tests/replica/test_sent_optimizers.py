"""What one rank's optimizers hold, sent to ranks that list the same parameters in other orders."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from relaxcomm import ConfigError
from relaxcomm.engine.membership import survival
from tests.engine.harness import World, in_process


def optimizers_of(model: nn.Sequential, *, is_odd: bool) -> list[torch.optim.Optimizer]:
    order = -1 if is_odd else 1
    groups = [
        {"params": [one.weight, one.bias][::order], "lr": 0.1 / number}
        for number, one in enumerate(model[:2], start=1)
    ]
    pair = torch.optim.Adam(groups[::order]), torch.optim.Adam(list(model[2].parameters())[::order], lr=0.3)
    return list(pair[::order])


def sent(world: World):
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(3)))  # shapes do not tell weights from biases
    optimizers = optimizers_of(model, is_odd=world.rank == 2)
    with world.attach(model, optimizers, {"algorithm": "bsp", "bucket_bytes": 8}) as engine:
        model(torch.full((1, 1), 1.0 + world.rank)).square().sum().backward()
        for one in optimizers:
            one.step()
        states = {p: held for one in optimizers for p, held in one.state.items()}
        for number, p in enumerate(model.parameters()):
            states[p]["exp_avg"].fill_(number + 10 * world.rank)
        survival.send_shared(engine._session.bound, 1)
    rates = {p: group["lr"] for one in optimizers for group in one.param_groups for p in group["params"]}
    held = {p: values["exp_avg"].item() for one in optimizers for p, values in one.state.items()}
    return [(held[p], rates[p]) for p in model.parameters()]


def test_each_parameter_gets_what_is_its_own():
    for found in in_process(sent, 3):
        moments, rates = zip(*found, strict=True)
        assert moments == (10, 11, 12, 13, 14, 15)
        assert rates == pytest.approx((0.1, 0.1, 0.05, 0.05, 0.3, 0.3))


def in_other_groups(world: World):
    model = nn.Linear(2, 2)
    groups = [[model.weight, model.bias]] if world.rank == 1 else [[model.weight], [model.bias]]
    optimizer = torch.optim.SGD([{"params": one} for one in groups], lr=0.1)
    with world.attach(model, optimizer, {"algorithm": "bsp"}) as engine:
        survival.send_shared(engine._session.bound, 1)


def test_other_groups_are_refused():
    with pytest.raises(ConfigError, match=r"whose groups hold \[1, 1\] parameters as here, such as weight"):
        in_process(in_other_groups, 3)
