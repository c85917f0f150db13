"""Runs go on from what was saved where optimizers, their groups or parameters are listed in other orders."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from relaxcomm import ConfigError, attach, checkpoint, simulate
from tests.replica.test_sent_optimizers import held_by, optimizers_of


def run(group, acts, folder, odd):
    """What is held of each parameter after a save on ranks that hold others, or after a load."""
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(3)))  # shapes do not tell weights from biases
    optimizers = optimizers_of(model, is_odd=group.rank() == odd)
    with attach(
        model, optimizers, {"algorithm": "local_sgd", "bucket_bytes": 8}, process_group=group
    ) as engine:
        if acts is checkpoint.save:
            model(torch.ones(1, 1)).square().sum().backward()
            for one in optimizers:
                one.step()
            states = {p: held for one in optimizers for p, held in one.state.items()}
            for number, p in enumerate(model.parameters()):
                states[p]["exp_avg"].fill_(number + 10 * group.rank())
        acts(engine, folder)
        return held_by(model, optimizers)


@pytest.mark.parametrize(("after", "odd"), [(2, 0), (3, 1), (3, 2), (4, None)])
def test_each_parameter_gets_what_is_its_own(tmp_path, after, odd):
    simulate(lambda group: run(group, checkpoint.save, tmp_path, 1), 3)
    loaded = simulate(lambda group: run(group, checkpoint.load, tmp_path, odd), after)
    for rank, found in enumerate(loaded):
        moments, rates = zip(*found, strict=True)
        of = rank if after == 3 else 1  # the mean of ranks 0 to 2 is that of rank 1
        assert moments == tuple(number + 10 * of for number in range(6))
        assert rates == pytest.approx((0.1, 0.1, 0.05, 0.05, 0.3, 0.3))


def stepped(parameters, model):
    optimizer = torch.optim.Adam(parameters, lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return optimizer


def test_other_parameters_in_as_large_groups_are_refused():
    """Their places would pair the moments of different parameters."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    layers = [{"params": list(one.parameters())} for one in model]
    kinds = [{"params": [getattr(one, kind) for one in model]} for kind in ("weight", "bias")]
    with attach(model, stepped(layers, model), "bsp") as engine:
        state = copy.deepcopy(engine.run_state_dict())
    text = r"saved has no optimizer whose groups hold \[2, 2\] .* 0.weight"
    with attach(model, stepped(kinds, model), "bsp") as engine, pytest.raises(ConfigError, match=text):
        engine.load_run_state_dict(state)


def test_parameters_that_are_not_the_models_keep_their_places():
    """As of what is to be attached next; the engine's next step would refuse them."""
    model, others = nn.Linear(2, 2), [nn.Parameter(torch.zeros(2)) for _ in range(2)]
    optimizer = stepped(model.parameters(), model)
    with attach(model, optimizer, "bsp") as engine:
        optimizer.add_param_group({"params": others})
        for number, one in enumerate(others):
            optimizer.state[one] = {"step": torch.tensor(1.0), "exp_avg": torch.full((2,), 5.0 + number)}
        state = copy.deepcopy(engine.run_state_dict())
        optimizer.state.clear()
        optimizer.param_groups.reverse()
        engine.load_run_state_dict(state)
    assert [optimizer.state[one]["exp_avg"].tolist() for one in others] == [[5.0, 5.0], [6.0, 6.0]]


@pytest.mark.parametrize(
    "names", [[], [[]], [[["weight"]]], [[["weight", "bias"], []]], [[["weight", 1]]], [["weight", "bias"]]]
)
def test_names_that_are_of_other_groups_are_no_saved_state(names):
    model = nn.Linear(2, 2)
    with attach(model, stepped(model.parameters(), model), "bsp") as engine:
        state = {**engine.run_state_dict(), "optimizer_parameters": names}
        with pytest.raises(ConfigError, match="the saved state is damaged: optimizer_parameters"):
            engine.load_run_state_dict(state)


class Halving:
    """A scheduler that is none of torch's, as timm has."""

    def __init__(self, optimizer):
        self.kept = {"base": [group["lr"] for group in optimizer.param_groups]}
        self.optimizer = optimizer

    def step(self):
        for group, rate in zip(self.optimizer.param_groups, self.kept["base"], strict=True):
            group["lr"] = rate / 2

    def state_dict(self):
        return {"kept": dict(self.kept)}

    def load_state_dict(self, state_dict):
        self.kept = state_dict["kept"]


def stepping(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1)


@pytest.mark.parametrize("kind", [stepping, Halving])
@pytest.mark.parametrize("changes", ["nothing", "its groups", "others"])
def test_groups_in_another_order_are_refused_beside_their_scheduler(kind, changes):
    """It keeps rates by their places, and would give each group another's at its next step."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    weight, bias, *rest = model.parameters()

    def made(changes):
        rates = [{"params": [weight], "lr": 0.1}, {"params": [bias], "lr": 0.9}]
        others = [{"params": [p]} for p in rest]
        optimizers = [
            torch.optim.SGD(rates[::-1] if changes == "its groups" else rates),
            torch.optim.SGD(others[::-1] if changes == "others" else others, lr=0.1),
        ]
        return optimizers, kind(optimizers[0])

    optimizers, scheduler = made("nothing")
    with attach(model, optimizers, "bsp") as engine:
        model(torch.ones(1, 2)).sum().backward()
        for one in optimizers:
            one.step()
        scheduler.step()
        state = copy.deepcopy(engine.run_state_dict(scheduler=scheduler))
    optimizers, scheduler = made(changes)
    with attach(model, optimizers, "bsp") as engine:
        if changes == "its groups":
            text = r"0 began with 0.weight, 0.bias as .* begin with 0.bias, 0.weight here, and 'scheduler'"
            with pytest.raises(ConfigError, match=text):
                engine.load_run_state_dict(state, scheduler=scheduler)
        else:
            engine.load_run_state_dict(state, scheduler=scheduler)


class Best:
    """The best steps so far, each with its loss."""

    def state_dict(self):
        return {"best": [(1, 0.5), (7, 0.25), (9, 0.2)]}

    def load_state_dict(self, state_dict):
        assert state_dict == self.state_dict()


def test_pairs_beside_two_groups_are_no_rates():
    model = nn.Linear(2, 2)
    groups = [{"params": [one]} for one in model.parameters()]
    with attach(model, torch.optim.SGD(groups, lr=0.1), "bsp") as engine:
        state = copy.deepcopy(engine.run_state_dict(best=Best()))
    with attach(model, torch.optim.SGD(groups[::-1], lr=0.1), "bsp") as engine:
        engine.load_run_state_dict(state, best=Best())


class ByPlace(torch.optim.SGD):
    """Keeps its momenta in a list, by the places of parameters."""

    def __init__(self, parameters, *, in_group):
        super().__init__(parameters, lr=0.1)
        self.in_group = in_group
        self.kept = [torch.zeros_like(p) for p in self.param_groups[0]["params"]]

    def state_dict(self):
        state = super().state_dict()
        if self.in_group:
            state["param_groups"][0]["kept"] = self.kept
            return state
        return {**state, "kept": self.kept}


class Flat(torch.optim.SGD):
    """Keeps all at its first parameter, as LBFGS does."""

    def step(self, closure=None):
        parameters = self.param_groups[0]["params"]
        self.state[parameters[0]] = {"flat": torch.zeros(sum(p.numel() for p in parameters))}
        super().step(closure)


class Stacked(torch.optim.SGD):
    """Keeps the momenta of parameters of one shape at the first, stacked."""

    def step(self, closure=None):
        super().step(closure)
        parameters = self.param_groups[0]["params"]
        self.state[parameters[0]] = {"stack": torch.stack([p.grad for p in parameters])}


class InGroup(torch.optim.SGD):
    """Keeps the momentum of a group, flat, beside its settings."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            group["flat"] = torch.cat([p.grad.flatten() for p in group["params"]])


class BesideAll(torch.optim.SGD):
    """Keeps the momentum of all, flat, under a name of its own."""

    def step(self, closure=None):
        super().step(closure)
        self.state["flat"] = torch.zeros(32)


class Counting(torch.optim.Adam):
    """Keeps numbers beside the states, as PostLocalSGDOptimizer does, and a table in each of them."""

    def state_dict(self):
        return {**super().state_dict(), "count": 3, "steps": torch.tensor(2), "versions": {"own": 1}}

    def step(self):
        super().step()
        for number, one in enumerate(self.state.values()):
            one["table"] = torch.full((100,), float(number))


def reversed_after_save(kind, **settings):
    """States of parameters as one optimizer has them, and one that has loaded them in another order."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    parameters = [*model.parameters()]
    before, after = kind(parameters, **settings), kind(parameters[::-1], **settings)
    with attach(model, before, "bsp") as engine:
        model(torch.rand(2, 4)).square().sum().backward()
        before.step()
        saved = copy.deepcopy(engine.run_state_dict())
    with attach(model, after, "bsp") as engine:
        engine.load_run_state_dict(saved)
    return [[one.state[p] for p in parameters] for one in (before, after)]


@pytest.mark.parametrize(
    ("kind", "settings", "has"),
    [
        (ByPlace, {"in_group": False}, r"\['kept', 'param_groups', 'state'\]"),
        (ByPlace, {"in_group": True}, "'kept', with tensors of no parameter"),
        (InGroup, {"lr": 0.1}, "'flat', with tensors of no parameter"),
        (BesideAll, {"lr": 0.1}, "'flat', with tensors of no parameter"),
        (Flat, {"lr": 0.1}, "'flat' of 32 entries for the 16 of 0.weight"),
        (Stacked, {"lr": 0.1}, "'stack' of 32 entries for the 16 of 0.weight"),
    ],
)
def test_what_is_kept_by_places_is_refused_in_another_order(kind, settings, has):
    with pytest.raises(ConfigError, match=f"the state of an optimizer has {has}, not all of it in torch's"):
        reversed_after_save(kind, **settings)


@pytest.mark.parametrize(
    "kind", [Counting, *(getattr(torch.optim, one) for one in ("Adafactor", "ASGD", "NAdam", "Rprop"))]
)
def test_torchs_optimizers_may_list_parameters_in_another_order(kind):
    before, after = reversed_after_save(kind)
    torch.testing.assert_close(after, before, rtol=0, atol=0)
