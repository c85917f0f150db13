"""What one rank's optimizers hold, sent to ranks that list the same parameters in other orders."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
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


def held_by(model: nn.Module, optimizers: list[torch.optim.Optimizer]):
    """Moment and rate of each parameter."""
    rates = {p: group["lr"] for one in optimizers for group in one.param_groups for p in group["params"]}
    held = {p: values["exp_avg"].item() for one in optimizers for p, values in one.state.items()}
    return [(held[p], rates[p]) for p in model.parameters()]


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
    return held_by(model, optimizers)


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


def sent_by_1(world: World, make, change=lambda one: None):
    """An optimizer, changed on rank 1 and sent from there."""
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(3)))
    optimizer = make(model, world.rank)
    with world.attach(model, optimizer, {"algorithm": "bsp", "bucket_bytes": 8}) as engine:
        model(torch.ones(1, 1)).square().sum().backward()
        optimizer.step()
        if world.rank == 1:
            change(optimizer)
        survival.send_shared(engine._session.bound, 1)
    return model, optimizer


class Inside(torch.optim.Optimizer):
    """Its state is its own, not as torch's are."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})
        self.steps = 0

    def step(self, closure=None):
        self.steps += 1

    def state_dict(self):
        return {"inner": {"steps": self.steps}}

    def load_state_dict(self, state_dict):
        self.steps = state_dict["inner"]["steps"]


def inside(model, rank):
    return Inside(list(model.parameters()))


def test_a_state_of_another_form_is_loaded_as_it_is():
    def change(optimizer):
        optimizer.steps = 7

    assert [one.steps for _, one in in_process(lambda world: sent_by_1(world, inside, change), 3)] == [
        7,
        7,
        7,
    ]


def test_a_state_of_another_form_is_refused_for_parameters_in_another_order():
    def make(model, rank):
        return Inside(list(model.parameters())[:: -1 if rank == 2 else 1])

    with pytest.raises(
        ConfigError, match=r"has \['inner'\], not all of it in torch's .* another order than here; list them"
    ):
        in_process(lambda world: sent_by_1(world, make), 3)


def test_names_in_a_group_stay_those_of_its_parameters():
    def make(model, rank):
        return torch.optim.Adam(list(model.named_parameters())[:: -1 if rank == 2 else 1])

    for model, optimizer in in_process(lambda world: sent_by_1(world, make), 3):
        (group,), named = optimizer.param_groups, dict(model.named_parameters())
        pairs = zip(group["param_names"], group["params"], strict=True)
        assert all(named[name] is p for name, p in pairs)


def test_of_several_empty_groups_each_gets_what_is_its_own():
    def make(model, rank):
        parameters = list(model.parameters())[:: -1 if rank == 2 else 1]
        return torch.optim.Adam([{"params": []}, {"params": []}, {"params": parameters}])

    def change(optimizer):
        for number, group in enumerate(optimizer.param_groups, start=1):
            group["lr"] = number / 10

    for _, optimizer in in_process(lambda world: sent_by_1(world, make, change), 3):
        assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2, 0.3]


def momentum(model, rank):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def test_numbers_of_numpy_are_sent_as_numbers():
    """As a schedule by np.interp has them."""

    def change(optimizer):
        optimizer.param_groups[0].update(lr=np.float64(0.5), betas=[(np.float32(0.25), np.int64(3))])

    for _, optimizer in in_process(lambda world: sent_by_1(world, momentum, change), 3):
        assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"]) == (0.5, [(0.25, 3)])


def test_what_only_code_could_make_again_is_refused_by_name():
    def change(optimizer):
        optimizer.param_groups[0]["share"] = Fraction(1, 2)

    with pytest.raises(ConfigError, match=r"has fractions\.Fraction, .* tensors, numbers and text"):
        in_process(lambda world: sent_by_1(world, momentum, change), 3)
