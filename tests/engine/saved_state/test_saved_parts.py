"""What loads a saved state by a method of its own: all of it on all ranks, or nothing."""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LRScheduler,
    MultiplicativeLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from relaxcomm import ConfigError, attach
from tests.engine.harness import World, in_process
from tests.models import take_step


def step(optimizer):
    return StepLR(optimizer, 3, gamma=0.5)


def cosine(optimizer):
    return CosineAnnealingLR(optimizer, 9)


def plateau(optimizer):
    return ReduceLROnPlateau(optimizer)


def scaled(optimizer):
    return LambdaLR(optimizer, lambda epoch: 0.9**epoch)


def in_turn(optimizer):
    return SequentialLR(optimizer, [step(optimizer), cosine(optimizer)], [2])


def exponential(optimizer):
    return ExponentialLR(optimizer, 0.9)


def multiplied(optimizer):
    return MultiplicativeLR(optimizer, lambda epoch: 0.9)


def others_in_turn(optimizer):
    return SequentialLR(optimizer, [step(optimizer), exponential(optimizer)], [2])


def three_in_turn(optimizer):
    return SequentialLR(optimizer, [step(optimizer), cosine(optimizer), cosine(optimizer)], [2, 4])


def together(optimizer):
    return ChainedScheduler([step(optimizer), cosine(optimizer)], optimizer)


class OfMine(StepLR):
    def __init__(self, optimizer):
        super().__init__(optimizer, 3)


class Around(LRScheduler):
    """One that a framework puts around another."""

    def __init__(self, optimizer):
        self.inner = step(optimizer)

    def step(self):
        self.inner.step()

    def state_dict(self):
        return self.inner.state_dict()

    def load_state_dict(self, state_dict):
        self.inner.load_state_dict(state_dict)


def attached(world: World, make):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    optimizer.param_groups[0]["initial_lr"] = 0.1  # which not all schedulers set
    scheduler = make(optimizer)
    engine = world.attach(model, optimizer, {"algorithm": "bsp", "bucket_bytes": 20})
    return model, optimizer, scheduler, engine


def resumed(world: World, saved_by, loaded_by):
    """What is said where one scheduler was saved and another loads."""
    model, optimizer, scheduler, engine = attached(world, saved_by)
    with engine:
        for _ in range(2):
            take_step(model(torch.ones(1, 3)).sum(), optimizer)
            scheduler.step(*([0.1] if saved_by is plateau else []))
        saved = engine.run_state_dict(scheduler=scheduler)
    model, optimizer, scheduler, engine = attached(world, loaded_by)
    with engine:
        before = model.weight.tolist(), dict(vars(scheduler)), len(optimizer.state)
        try:
            engine.load_run_state_dict(saved, scheduler=scheduler)
        except ConfigError as error:
            assert before == (model.weight.tolist(), dict(vars(scheduler)), len(optimizer.state))
            return str(error)
    return ""


REFUSED = {
    "settings": (step, cosine, "'scheduler' is of StepLR, and CosineAnnealingLR is given"),
    "plateau": (step, plateau, "and ReduceLROnPlateau is given"),
    "lambdas": (step, scaled, "and LambdaLR is given"),
    "that wraps any": (Around, cosine, "no T_max, eta_min, which CosineAnnealingLR keeps"),
    "others inside": (
        cosine,
        in_turn,
        "is of CosineAnnealingLR, and SequentialLR(StepLR, CosineAnnealingLR) is given; make the scheduler",
    ),
    "more settings": (step, exponential, "is of StepLR, and ExponentialLR is given"),
    "lambdas alike": (scaled, multiplied, "is of LambdaLR, and MultiplicativeLR is given"),
    "in turn, together": (in_turn, together, "and ChainedScheduler(StepLR, CosineAnnealingLR) is given"),
    "other kinds inside": (in_turn, others_in_turn, "and SequentialLR(StepLR, ExponentialLR) is given"),
    "another number": (in_turn, three_in_turn, "and SequentialLR(StepLR, CosineAnnealingLR, CosineAn"),
}


@pytest.mark.parametrize(("saved_by", "loaded_by", "says"), REFUSED.values(), ids=REFUSED)
def test_another_kind_of_scheduler_is_refused_before_anything_has_changed(saved_by, loaded_by, says):
    for said in in_process(resumed, 3, saved_by, loaded_by):
        assert says in said


def test_a_scaler_that_was_off_is_refused_before_anything_has_changed():
    def rank(world: World):
        saved = None
        for enabled in (False, True):
            model = torch.nn.Linear(3, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
            scaler = torch.amp.GradScaler("cpu", enabled=enabled)
            with world.attach(model, optimizer, {"algorithm": "bsp"}, scaler=scaler) as engine:
                if saved is None:
                    saved = engine.run_state_dict()
                    continue
                before = model.weight.tolist()
                with pytest.raises(ConfigError, match="GradScaler does not take the saved state"):
                    engine.load_run_state_dict(saved)
                assert model.weight.tolist() == before

    in_process(rank, 2)


@pytest.mark.parametrize("make", [step, cosine, plateau, scaled, in_turn, together, Around])
def test_the_same_kind_goes_on(make):
    assert in_process(resumed, 2, make, make) == ["", ""]


def test_a_run_of_another_schema_is_called_that_whatever_else_it_lacks():
    with attach(torch.nn.Linear(2, 1), None, "bsp") as engine:
        state = engine.run_state_dict()
        del state["scheduler_kinds"], state["engine"]["strides"]
        state["engine"]["schema"] = 1
        with pytest.raises(ConfigError, match=r"has schema 1, this run has 2; load one that this version"):
            engine.load_run_state_dict(state)


@pytest.mark.parametrize(("saved_by", "loaded_by"), [(step, OfMine), (OfMine, step), (step, Around)])
def test_a_subclass_or_wrapper_of_the_same_kind_goes_on(saved_by, loaded_by):
    assert in_process(resumed, 1, saved_by, loaded_by) == [""]


def test_what_is_of_no_known_kind_is_compared_by_what_it_keeps():
    (said,) = in_process(resumed, 1, Around, cosine)
    assert "no T_max, eta_min, which CosineAnnealingLR keeps" in said
