"""What loads a saved state by a method of its own: all of it on all ranks, or nothing."""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, ReduceLROnPlateau, SequentialLR, StepLR

from relaxcomm import ConfigError
from tests.engine.harness import World, in_process


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
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
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
    "settings": (step, cosine, "no T_max, eta_min, which CosineAnnealingLR keeps"),
    "plateau": (step, plateau, "which ReduceLROnPlateau keeps"),
    "lambdas": (step, scaled, "no lr_lambdas, which LambdaLR keeps"),
    "others inside": (
        cosine,
        in_turn,
        "(SequentialLR) does not take the saved state: KeyError('_schedulers')",
    ),
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


@pytest.mark.parametrize("make", [step, cosine, plateau, scaled, in_turn])
def test_the_same_kind_goes_on(make):
    assert in_process(resumed, 2, make, make) == ["", ""]
