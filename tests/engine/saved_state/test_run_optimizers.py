"""Runs go on from what optimizers save that keep more than torch's do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from relaxcomm import ConfigError, attach, checkpoint, simulate
from relaxcomm.engine.saved_state.run_optimizers import telling_of_options


class Counting(torch.optim.SGD):
    """Its groups gain a setting in the first step."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
        return super().step(closure)


class Naming(torch.optim.SGD):
    """It keeps a state of no parameter, and adds an entry to what it saves."""

    total = 0

    def step(self, closure=None):
        self.total += 1
        self.state["whole"] = {"norm": torch.tensor([2.0, 3.0])}
        self.state["k"] = self.total
        return super().step(closure)

    def state_dict(self):
        return {**super().state_dict(), "total": self.total}

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self.total = state_dict["total"]


class Refusing(Naming):
    """It changes, and does not take a state then."""

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        if self.total == 2:
            raise KeyError("mine")


class Listing(torch.optim.SGD):
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            self.state[p] = [p.grad.clone()]


def trained(engine, model, optimizers, steps):
    for _ in range(steps):
        model(torch.ones(8, 4)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def resumed(make, folder, *, into=None, after=lambda optimizer: None):
    """The optimizer that was saved, and one that goes on from it."""
    found = []
    for made, acts in ((make, checkpoint.save), (into or make, checkpoint.load)):
        model = nn.Linear(4, 2)
        optimizer = made(model.parameters())
        found.append(optimizer)
        with attach(model, optimizer, "bsp") as engine:
            if acts is checkpoint.save:
                trained(engine, model, [optimizer], 2)
                after(optimizer)
            acts(engine, folder)
    return found


def trained_alone(*optimizers):
    """A step of each leaves the same moments."""
    for optimizer in optimizers:
        for p in optimizer.param_groups[0]["params"]:
            p.grad = torch.ones_like(p)
        optimizer.step()
    for states in zip(*(one.state.values() for one in optimizers), strict=True):
        for name in states[0]:
            torch.testing.assert_close(*(one[name] for one in states))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def test_groups_may_have_gained_settings(tmp_path):
    _, loaded = resumed(lambda parameters: Counting(parameters, lr=0.1), tmp_path)
    assert loaded.param_groups[0]["count"] == 2


def test_a_schedule_may_have_begun_in_the_run(tmp_path):
    def begin(optimizer):
        torch.optim.swa_utils.SWALR(optimizer, 0.05)

    _, loaded = resumed(sgd, tmp_path, after=begin)
    assert (loaded.param_groups[0]["swa_lr"], loaded.param_groups[0]["initial_lr"]) == (0.05, 0.1)


def test_a_setting_that_would_be_lost_is_refused_and_named(tmp_path):
    def with_more(parameters):
        optimizer = sgd(parameters)
        optimizer.param_groups[0]["mine"] = 1
        return optimizer

    text = r"groups of \{'mine': 'not there'\}, and SGD has \{'mine': 'number'\}; make"
    with pytest.raises(ConfigError, match=text):
        resumed(sgd, tmp_path, into=with_more)


@pytest.mark.parametrize(
    ("before", "after", "lacks"),
    [
        ("Adam", "RAdam", "amsgrad"),
        ("AdamW", "RAdam", "amsgrad"),
        ("NAdam", "RAdam", "momentum_decay"),
        ("Adam", "Adamax", "amsgrad"),
    ],
)
def test_another_method_is_refused(tmp_path, before, after, lacks):
    make, into = (getattr(torch.optim, name) for name in (before, after))
    with pytest.raises(ConfigError, match=f"and {after} has .*'{lacks}': 'not there'.*; make the optimizer"):
        resumed(make, tmp_path, into=into)


@pytest.mark.parametrize(("before", "after"), [("Adam", "AdamW"), ("AdamW", "Adam")])
def test_moments_that_mean_the_same_are_taken(tmp_path, before, after):
    make, into = (getattr(torch.optim, name) for name in (before, after))
    saved, loaded = (one.state_dict()["state"][0]["exp_avg"] for one in resumed(make, tmp_path, into=into))
    assert torch.equal(loaded, saved)


def test_a_subclass_may_take_the_state_and_give_it(tmp_path):
    for index, (make, into) in enumerate([(Counting, torch.optim.SGD), (torch.optim.SGD, Counting)]):
        resumed(make, tmp_path / str(index), into=into)


@pytest.mark.parametrize(
    ("kind", "changed"),
    [("Adam", {"foreach": True}), ("Adam", {"fused": True}), ("NAdam", {"betas": [0.8, 0.9]})],  # as of YAML
    ids=str,
)
@pytest.mark.parametrize("is_back", [False, True])
def test_settings_with_which_moments_mean_the_same_may_change(tmp_path, kind, changed, is_back):
    def plain(parameters):
        return getattr(torch.optim, kind)(parameters, betas=(0.7, 0.8))

    def with_others(parameters):
        return getattr(torch.optim, kind)(parameters, **{"betas": (0.7, 0.8), **changed})

    make, into = (with_others, plain) if is_back else (plain, with_others)
    saved, loaded = resumed(make, tmp_path, into=into)
    group, made = loaded.param_groups[0], into(nn.Linear(4, 2).parameters()).param_groups[0]
    assert [group.get(key) for key in ("foreach", "fused")] == [made.get(key) for key in ("foreach", "fused")]
    assert group["betas"] == saved.param_groups[0]["betas"]
    for theirs, ours in zip(saved.state.values(), loaded.state.values(), strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    trained_alone(saved, loaded)


def test_a_scaler_takes_a_fused_optimizer_that_was_not_when_saved(tmp_path):
    """It leaves the division by the scale to an optimizer that was made fused."""
    for fused, acts in ((None, checkpoint.save), (True, checkpoint.load)):
        model, scaler = nn.Linear(4, 2), torch.amp.GradScaler("cpu")
        optimizer = torch.optim.Adam(model.parameters(), fused=fused)
        with attach(model, optimizer, "bsp", scaler=scaler) as engine:
            if fused:
                acts(engine, tmp_path)
            scaler.scale(model(torch.ones(8, 4)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if not fused:
                acts(engine, tmp_path)


def test_other_groups_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no optimizer whose groups hold \[1, 1\] parameters"):
        resumed(sgd, tmp_path, into=lambda parameters: sgd([{"params": [one]} for one in parameters]))


def test_names_of_parameters_are_torchs_own(tmp_path):
    def named(parameters):
        return sgd([(str(index), one) for index, one in enumerate(parameters)])

    _, loaded = resumed(sgd, tmp_path, into=named)
    assert loaded.param_groups[0]["param_names"] == ["0", "1"]


def test_names_of_their_own_go_through(tmp_path):
    _, loaded = resumed(lambda parameters: Naming(parameters, lr=0.1, momentum=0.9), tmp_path)
    assert (loaded.total, loaded.state["k"]) == (2, 2)
    assert loaded.state["whole"]["norm"].tolist() == [2.0, 3.0]


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    with pytest.raises(ConfigError, match=r"state of Listing could not be loaded again: state.*parameter 0"):
        resumed(lambda parameters: Listing(parameters, lr=0.1), tmp_path)
    assert not list(tmp_path.iterdir())


def test_where_one_does_not_take_its_state_nothing_is_loaded(tmp_path):
    def run(group, second, acts, steps):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        optimizers = [sgd(model[0].parameters()), second(model[1].parameters(), lr=0.1, momentum=0.9)]
        with attach(model, optimizers, "bsp", process_group=group) as engine:
            trained(engine, model, optimizers, steps)
            before = repr((model.state_dict(), [one.state_dict() for one in optimizers]))
            try:
                acts(engine, tmp_path)
            except ConfigError as error:
                assert repr((model.state_dict(), [one.state_dict() for one in optimizers])) == before
                return str(error)

    simulate(lambda group: run(group, Naming, checkpoint.save, 2), 2)
    told = simulate(lambda group: run(group, (Naming, Refusing)[group.rank()], checkpoint.load, 1), 2)
    assert all("Refusing does not take the saved state: KeyError('mine')" in one for one in told)


def test_a_schedule_is_no_other_learning_rate(capsys):
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with telling_of_options([optimizer], rank=0):
        optimizer.step()
        schedule.step()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_momentum_that_a_schedule_cycles_is_no_other_one(kind, capsys):
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(torch.nn.Linear(1, 1).parameters(), lr=0.1, weight_decay=0.0, **options)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)
    with telling_of_options([optimizer], rank=0):
        optimizer.step()
        schedule.step()
    assert capsys.readouterr().err == ""
    with telling_of_options([optimizer], rank=0):
        optimizer.param_groups[0]["weight_decay"] = 0.1
    assert "goes on with weight_decay 0.1" in capsys.readouterr().err


class CountingFromZero(torch.optim.SGD):
    """Its groups count steps, as those of schedule-free optimizers do."""

    def __init__(self, parameters, lr):
        super().__init__([{"params": [one], "k": 0} for one in parameters], lr=lr, momentum=0.9)

    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] += 1
        return super().step(closure)


def test_a_setting_that_is_another_here_is_told_of(tmp_path, capsys):
    made, into = (lambda parameters, lr=lr: CountingFromZero(parameters, lr) for lr in (0.1, 0.2))
    resumed(made, tmp_path, into=into)
    (told,) = (line for line in capsys.readouterr().err.splitlines() if "as it was saved" in line)
    assert "lr 0.1, as it was saved, until the loop sets another, not with 0.2, as it was made here" in told
    assert told.endswith("; so do 1 other groups with theirs")
