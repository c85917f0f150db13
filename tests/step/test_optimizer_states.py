"""A switch to an algorithm that keeps replicas equal leaves equal optimizers, whatever each has trained."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from relaxcomm import ConfigError, NonFiniteError, attach, simulate


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, dtype=torch.cfloat))

    def forward(self, x):
        return x.to(torch.cfloat) @ self.weight


def layers():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def everything(model, x, step, rank):
    return model(x).abs().square().mean()


def never_on_one_rank(model, x, step, rank):
    hidden = model[1](model[0](x))
    return (hidden if step < 4 and rank == 1 else model[2](hidden)).square().mean()


def not_once_on_one_rank(model, x, step, rank):
    hidden = model[1](model[0](x))
    return (hidden if step == 1 and rank == 1 else model[2](hidden)).square().mean()


class Numbered(torch.optim.SGD):
    """Keeps moments under numbers, as torch's checkpoints allow, beside a count."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                held = self.state[p]
                held[0] = held.get(0, torch.zeros_like(p)) + p.grad
                held["step"] = held.get("step", 0) + 1
                p.data.sub_(group["lr"] * held[0])


SGD = torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}
ADAM = torch.optim.Adam, {"lr": 0.01}
CASES = {
    "momentum": (layers, SGD, everything),
    "adafactor": (layers, (torch.optim.Adafactor, {"lr": 0.01}), everything),
    "nadam": (layers, (torch.optim.NAdam, {"lr": 0.01}), not_once_on_one_rank),
    "moments under numbers": (layers, (Numbered, {"lr": 0.01}), everything),
    "complex": (Complex, SGD, everything),
    "momentum of what a rank never used": (layers, SGD, never_on_one_rank),
    "adam of what a rank never used": (layers, ADAM, never_on_one_rank),
    "rprop of what a rank never used": (layers, (torch.optim.Rprop, {"lr": 0.01}), never_on_one_rank),
    "adam of what a rank did not use once": (layers, ADAM, not_once_on_one_rank),
}


@pytest.mark.parametrize("case", CASES)
def test_replicas_stay_equal_after_it(case):
    make, (optimizer_of, options), loss = CASES[case]

    def rank(group):
        torch.manual_seed(0)
        model, data = make(), torch.Generator().manual_seed(group.rank())
        optimizer = optimizer_of(model.parameters(), **options)
        config = {"algorithm": {"name": "local_sgd", "steps": 2}, "bucket_bytes": 64}
        with attach(model, optimizer, config, process_group=group) as engine:
            for step in range(8):
                if step == 4:
                    engine.switch("bsp")
                optimizer.zero_grad()
                loss(model, torch.randn(8, 4, generator=data), step, group.rank()).backward()
                optimizer.step()
            engine.close(average=False)
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    first, *others = simulate(rank, 3)
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=0)


class Bare(torch.optim.SGD):
    """Keeps a tensor, or None, where torch's keep dicts."""

    keeps_none = False

    def step(self, closure=None):
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            self.state[p] = None if self.keeps_none else p.grad.clone()


@pytest.mark.parametrize("kept", ["Tensor", "NoneType"])
def test_a_state_that_is_no_dict_is_named(kept):
    def rank(group):
        model = layers()
        optimizer = Bare(model.parameters(), lr=0.1)
        optimizer.keeps_none = kept == "NoneType"
        with attach(model, optimizer, "local_sgd", process_group=group) as engine:
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
            with pytest.raises(ConfigError, match=rf"keeps a {kept} of 2.bias, .* keep a dict"):
                engine.switch("bsp")
            return engine.algorithm.name

    assert simulate(rank, 3) == ["local_sgd"] * 3


def test_what_some_ranks_have_not_begun_is_the_mean_of_the_others():
    """Rprop's step sizes begin at the learning rate, and zeros would be none."""

    def rank(group):
        torch.manual_seed(0)
        model, data = layers(), torch.Generator().manual_seed(group.rank())
        optimizer = torch.optim.Rprop(model.parameters(), lr=0.01)
        config = {"algorithm": {"name": "local_sgd", "steps": 2}}
        with attach(model, optimizer, config, process_group=group) as engine:
            for step in range(3):
                optimizer.zero_grad()
                never_on_one_rank(model, torch.randn(8, 4, generator=data), step, group.rank()).backward()
                optimizer.step()
            own = {name: value.clone() for name, value in optimizer.state[model[2].weight].items()}
            engine.switch("bsp")
        return own, optimizer.state[model[2].weight]

    ranks = simulate(rank, 3)
    assert not ranks[1][0]
    for name in ("prev", "step_size"):
        mean = (ranks[0][0][name] + ranks[2][0][name]) / 2
        for _, after in ranks:
            torch.testing.assert_close(after[name], mean)


def test_a_moment_that_is_none_has_not_begun():
    def rank(group):
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        own = torch.full((2, 4), float(group.rank())) if group.rank() else None
        with attach(model, optimizer, "local_sgd", process_group=group) as engine:
            optimizer.state[model.weight]["mine"] = own
            engine.switch("bsp")
        return optimizer.state[model.weight]["mine"]

    for found in simulate(rank, 3):
        torch.testing.assert_close(found, torch.full((2, 4), 1.5))


def test_what_is_infinite_on_all_ranks_stays_so():
    """As the least number so far of an entry that was not seen."""

    def rank(group):
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        own = torch.full((2, 4), float(group.rank()))
        own[0, :2] = torch.tensor([torch.inf, -torch.inf])
        with attach(model, optimizer, "local_sgd", process_group=group) as engine:
            optimizer.state[model.weight]["least"] = own
            engine.switch("bsp")
        return optimizer.state[model.weight]["least"].flatten().tolist()

    assert simulate(rank, 3) == [[torch.inf, -torch.inf, *[1.0] * 6]] * 3


def test_a_number_in_the_place_of_a_moment_is_no_mean():
    """Prodigy holds one where a parameter was zero in its first step."""

    def rank(group):
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        held = torch.full((2, 4), float(group.rank())) if group.rank() else torch.tensor(7.0)
        with attach(model, optimizer, "local_sgd", process_group=group) as engine:
            optimizer.state[model.weight]["mine"] = held
            engine.switch("bsp")
        return optimizer.state[model.weight]["mine"]

    first, *others = simulate(rank, 3)
    assert all(torch.equal(first, other) for other in others)


def test_a_step_that_a_scaler_skipped_on_one_rank():
    def rank(group):
        torch.manual_seed(0)
        model, data = nn.Linear(4, 2), torch.Generator().manual_seed(group.rank())
        optimizer, scaler = torch.optim.Adam(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu")
        config = {
            "algorithm": {"name": "local_sgd", "steps": 2},
            "phases": [{"after_steps": 4, "algorithm": "bsp"}],
        }
        with attach(model, optimizer, config, scaler=scaler, process_group=group) as engine:
            for step in range(10):
                optimizer.zero_grad()
                loss = model(torch.randn(8, 4, generator=data)).square().mean()
                if step == 2 and group.rank() == 1:
                    loss = loss * float("inf")
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            engine.close(average=False)
        return model.weight.detach(), optimizer.state[model.weight]["step"].item()

    ranks = simulate(rank, 3)
    for weight, steps in ranks:
        torch.testing.assert_close(weight, ranks[0][0], rtol=0, atol=0)
        assert steps == 10


def test_ranks_may_list_optimizers_and_groups_in_other_orders():
    """Moments and settings are those of the same parameters: shapes would not tell them apart."""

    def rank(group):
        torch.manual_seed(0)
        model, data = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3))), torch.Generator()
        data.manual_seed(group.rank())
        one, two, three = (
            {"params": list(layer.parameters()), "lr": 0.1 / n} for n, layer in enumerate(model, 1)
        )
        is_odd = group.rank() == 1
        several = torch.optim.Adam([two, one] if is_odd else [one, two]), torch.optim.Adam([three], lr=0.3)
        optimizers = several[::-1] if is_odd else several
        config = {"algorithm": {"name": "local_sgd", "steps": 2}, "bucket_bytes": 48}
        with attach(model, optimizers, config, process_group=group) as engine:
            for step in range(6):
                if step == 4:
                    own = [several[0].state[model[0].weight]["exp_avg"].clone()]
                    engine.switch("bsp")
                    own.append(several[0].state[model[0].weight]["exp_avg"].clone())
                for optimizer in optimizers:
                    optimizer.zero_grad()
                model(torch.randn(8, 3, generator=data)).square().mean().backward()
                for optimizer in optimizers:
                    optimizer.step()
            engine.close(average=False)
        rates = {
            p: group["lr"]
            for optimizer in several
            for group in optimizer.param_groups
            for p in group["params"]
        }
        return own, [rates[layer.weight] for layer in model], [p.detach().clone() for p in model.parameters()]

    ranks = simulate(rank, 3)
    mean = torch.stack([own[0] for own, *_ in ranks]).mean(0)
    for own, rates, parameters in ranks:
        torch.testing.assert_close(own[1], mean)
        assert rates == pytest.approx([0.1, 0.05, 0.1 / 3])
        torch.testing.assert_close(parameters, ranks[0][2], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("is_equal", "value", "said"),
    [
        (True, torch.inf, None),
        (False, torch.inf, "on rank 1; no mean was taken, and every rank's model is left"),
        (False, 3e38, r"it overflowed .*; models were averaged, and moments were not"),
    ],
    ids=["equal", "not finite", "overflows"],
)
def test_what_is_said_of_moments_without_a_finite_mean_is_so(is_equal, value, said):
    def rank(group):
        torch.manual_seed(0)
        model = layers()
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1 * (1 + group.rank()))
        with attach(
            model, optimizer, {"algorithm": "local_sgd", "bucket_bytes": 64}, process_group=group
        ) as engine:
            held = optimizer.state[model[0].weight]["sum"]
            if value < torch.inf or is_equal or group.rank() == 1:
                held.fill_(value)
            held[0] *= 1.0 if is_equal or group.rank() == 1 else 0.9
            for parameter in model.parameters():
                parameter.data.fill_(group.rank())
            before = model[0].bias.tolist()
            refusal = nullcontext() if said is None else pytest.raises(NonFiniteError, match=said)
            with refusal:
                engine.switch("bsp")
            found = model[0].bias.tolist(), optimizer.param_groups[0]["lr"]
            is_left = said is not None and "is left" in said
            assert (found[0] == before) == (is_left or group.rank() == 1)
            held.zero_()
            return None if is_left else found

    found = simulate(rank, 3)
    assert found == [found[0]] * 3
