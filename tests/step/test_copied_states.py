"""After a switch to an algorithm that keeps replicas equal they are, whatever their optimizers keep."""

from __future__ import annotations

import warnings
from collections import deque

import pytest
import torch
from torch import nn

from relaxcomm import ConfigWarning, attach, simulate
from tests.engine.harness import values
from tests.models import take_step

RANKS = 3


class Own(torch.optim.Optimizer):
    """An optimizer with a momentum that it keeps in a way of its own."""

    def __init__(self, parameters, lr=0.05):
        super().__init__(parameters, {"lr": lr, "d": 0.5})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(self.move(group, self.state[p], p.grad), alpha=group["lr"])


class Codes(Own):
    def move(self, group, state, gradient):
        state.setdefault("codes", torch.full(gradient.shape, 128, dtype=torch.uint8))
        state.setdefault("absmax", torch.zeros(1))
        moved = 0.9 * (state["codes"].float() - 128) / 127 * state["absmax"] + gradient
        state["absmax"] = moved.abs().max()[None]
        state["codes"] = (moved / state["absmax"] * 127 + 128).round().to(torch.uint8)
        return moved


class Lists(Own):
    def move(self, group, state, gradient):
        state["last"] = [*state.get("last", [])[-2:], gradient.clone()]
        return sum(state["last"])


class Nested(Own):
    def move(self, group, state, gradient):
        held = state.setdefault("held", {"momentum": torch.zeros_like(gradient), "names": ("a", 1)})
        return held["momentum"].mul_(0.9).add_(gradient)


class CountsInOneEntry(Own):
    def move(self, group, state, gradient):
        state.setdefault("step", torch.zeros(1)).add_(1)
        momentum = state.setdefault("momentum", torch.zeros_like(gradient)).mul_(0.9).add_(gradient)
        return momentum / (1 - 0.9 ** state["step"])


class CountsForEachEntry(Own):
    def move(self, group, state, gradient):
        state.setdefault("step", torch.zeros_like(gradient)).add_(gradient > 0)
        return gradient / (1 + state["step"])


class Rows(Own):
    """As many as are worth it on a rank."""

    def move(self, group, state, gradient):
        flat = gradient.flatten()
        state.setdefault("rows", flat[: int((flat.abs() > flat.abs().mean()).sum())].clone())
        return gradient * (1 + state["rows"].sum())


class InGroups(Own):
    """As Prodigy estimates a rate; what begins in training is in no group at first."""

    def move(self, group, state, gradient):
        group["seen"] = group.get("seen", 0) + gradient.norm().item()
        group["d"] = max(group["d"], gradient.norm().item())
        return gradient * group["d"] * (1 + group["seen"])


class OfNoParameter(Own):
    def move(self, group, state, gradient):
        norm = self.state.setdefault("norm", torch.zeros(()))
        return gradient * norm.mul_(0.9).add_(gradient.norm())


class HeldTwice(Own):
    """What is in its state is its own, too; the list is longer on some ranks."""

    def move(self, group, state, gradient):
        if not hasattr(self, "kept"):
            self.kept = {"norm": torch.zeros(()), "seen": []}
            self.state["whole"] = self.kept
        self.kept["norm"] = 0.9 * self.kept["norm"] + gradient.norm()
        if gradient.sum() > 0:
            self.kept["seen"].append(gradient.sum().item())
        return gradient * self.kept["norm"] * (1 + sum(self.kept["seen"]))


class Deques(Own):
    """What is not sent."""

    def move(self, group, state, gradient):
        state.setdefault("last", deque(maxlen=2)).append(gradient.clone())
        return sum(state["last"])


class Quantised(torch.Tensor):
    """As those of torchao: made of other tensors, with few operations of its own."""

    @staticmethod
    def __new__(cls, codes):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes):
        self.codes = codes

    def __tensor_flatten__(self):
        return ["codes"], None

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        raise NotImplementedError(f"{func} of a quantised tensor")


class Wrapped(Own):
    def move(self, group, state, gradient):
        held = state.setdefault("momentum", Quantised(torch.zeros_like(gradient)))
        return held.codes.mul_(0.9).add_(gradient)


def trained(group, make, *, steps=8, switch=4, **config):
    """Parameters and the optimizer; rank 1 has not begun the last layer when the switch comes."""
    torch.manual_seed(0)
    model, data = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)), torch.Generator()
    data.manual_seed(group.rank())
    optimizer = make(model.parameters())
    settings = {"algorithm": {"name": "local_sgd", "steps": 5}, "bucket_bytes": 64, **config}
    with attach(model, optimizer, settings, process_group=group) as engine:
        for step in range(steps):
            if step == switch:
                engine.switch("bsp")
            hidden = model[1](model[0](torch.randn(8, 4, generator=data)))
            part = hidden if step < switch and group.rank() == 1 else model[2](hidden)
            take_step(part.square().mean(), optimizer)
        engine.close(average=False)
    return values(model), optimizer


KINDS = [
    Codes, Lists, Nested, CountsInOneEntry, CountsForEachEntry, Rows, InGroups, OfNoParameter, HeldTwice
]  # fmt: skip


@pytest.mark.parametrize("make", KINDS)
def test_replicas_stay_equal(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConfigWarning)
        first, *others = simulate(lambda group: trained(group, make)[0], RANKS)
    for other in others:
        assert (other == first).all()


@pytest.mark.parametrize(("make", "left"), [(Deques, "last"), (Wrapped, "momentum")])
def test_what_cannot_be_sent_is_said(make, left):
    with pytest.warns(ConfigWarning, match=f"after the average of replicas.*keep their own {left}, which"):
        simulate(lambda group: trained(group, make)[0], RANKS)


def test_codes_and_their_scale_are_one_ranks():
    def worker(group):
        torch.manual_seed(group.rank())
        model = nn.Linear(4, 2)
        optimizer = Codes(model.parameters())
        config = {"algorithm": {"name": "local_sgd", "steps": 5}}
        with attach(model, optimizer, config, process_group=group) as engine:
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            before = {name: value.clone() for name, value in optimizer.state[model.weight].items()}
            engine.switch("bsp")
        return before, optimizer.state[model.weight]

    ranks = simulate(worker, RANKS)
    assert not torch.equal(ranks[0][0]["absmax"], ranks[1][0]["absmax"])
    for _, after in ranks:
        assert all(torch.equal(after[name], ranks[0][0][name]) for name in ("absmax", "codes"))


def test_what_an_optimizer_holds_elsewhere_too_stays_the_same():
    for _, optimizer in simulate(lambda group: trained(group, HeldTwice), RANKS):
        assert optimizer.state["whole"] is optimizer.kept


def test_the_drift_guard_copies_them_too():
    def worker(group):
        torch.manual_seed(0)
        model, data = nn.Linear(4, 2), torch.Generator().manual_seed(group.rank())
        optimizer = Codes(model.parameters())
        config = {"algorithm": "bsp", "drift_guard": {"every_steps": 2, "policy": "average"}}
        with attach(model, optimizer, config, process_group=group) as engine:
            for step in range(6):
                take_step(model(torch.randn(8, 4, generator=data)).square().mean(), optimizer)
                if step == 2 and group.rank() == 1:
                    optimizer.state[model.weight]["codes"].fill_(7)
            engine.close(average=False)
        return values(model), optimizer.state[model.weight]["codes"]

    with pytest.warns(match="hold different values"):
        (first, codes), *others = simulate(worker, RANKS)
    for other, theirs in others:
        assert (other == first).all()
        assert torch.equal(theirs, codes)
