"""Where a rank does not take its saved state, what all have loaded by then is as before, however deep."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.optim.lr_scheduler import ChainedScheduler, LambdaLR, LinearLR, SequentialLR, StepLR
from torch.optim.swa_utils import AveragedModel

from relaxcomm import ConfigError, attach, simulate
from tests.models import take_step


def in_turn(optimizer):
    return SequentialLR(optimizer, [LinearLR(optimizer), StepLR(optimizer, 3)], [2])


class Counted:
    """A rate with a state, which LambdaLR saves."""

    def __init__(self):
        self.calls = 0

    def __call__(self, epoch):
        self.calls += 1
        return 1 / self.calls


def counted(optimizer):
    return LambdaLR(optimizer, Counted())


class Averaged:
    """An average of weights that is not a module, and counts in a list."""

    def __init__(self, optimizer):
        self.shadow, self.counts = [torch.zeros(2)], [0]

    def step(self):
        self.counts[0] += 1
        self.shadow[0] += 1

    def state_dict(self):
        return {"shadow": self.shadow, "counts": self.counts}

    def load_state_dict(self, state_dict):
        self.counts[:] = state_dict["counts"]
        self.shadow[0].copy_(state_dict["shadow"][0])


class Loader:
    """As torchdata's: it begins where its state is asked for."""

    def __init__(self, optimizer):
        self.iterator = self.following = None

    def step(self):
        pass

    def __iter__(self):
        assert self.iterator is None
        self.iterator = [1]
        return iter(self.iterator)

    def state_dict(self):
        return {"at": len(list(self)) if self.iterator is None else 2}

    def load_state_dict(self, state_dict):
        assert self.iterator is None
        self.following = state_dict


class Late:
    """It has no state before it has begun."""

    def __init__(self, optimizer):
        self.at = None

    def step(self):
        self.at = 1 if self.at is None else self.at + 1

    def state_dict(self):
        return {"at": self.at + 0}

    def load_state_dict(self, state_dict):
        self.at = state_dict["at"]


class Average(AveragedModel):
    def __init__(self, optimizer):
        super().__init__(torch.nn.Linear(2, 1))

    def step(self):
        with torch.no_grad():
            self.module.weight.add_(1)


class Refusing:
    """Its load ends half way on one rank; the other has loaded all by then."""

    def __init__(self, is_sound):
        self.is_sound, self.parts = is_sound, [0, 0]

    def state_dict(self):
        return {"parts": list(self.parts)}

    def load_state_dict(self, state_dict):
        self.parts[0] = state_dict["parts"][0]
        if not self.is_sound:
            raise KeyError("mine")
        self.parts[1] = state_dict["parts"][1]


INNER = {
    "in turn": in_turn,
    "in turn, together": lambda optimizer: ChainedScheduler([in_turn(optimizer), StepLR(optimizer, 2)]),
    "object of LambdaLR": counted,
    "AveragedModel": Average,
    "average": Averaged,
    "loader": Loader,
    "late": Late,
}


@pytest.mark.parametrize("begun", [0, 1])
@pytest.mark.parametrize("make", INNER.values(), ids=INNER)
def test_where_another_rank_does_not_take_its_state_all_of_each_part_goes_back(make, begun):
    def rank(group, saved=None):
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        part, second = make(optimizer), Refusing(saved is None or group.rank() == 0)
        with attach(model, optimizer, "bsp", process_group=group) as engine:
            for _ in range(5 if saved is None else begun):
                take_step(model(torch.ones(1, 3)).sum(), optimizer)
                part.step()
            if saved is None:
                second.parts[:] = [3, 4]
                return copy.deepcopy(engine.run_state_dict(part=part, second=second))
            is_unbegun = isinstance(part, Loader) or (isinstance(part, Late) and not begun)
            before = dict(vars(part)) if is_unbegun else copy.deepcopy(part.state_dict())
            rates = repr(optimizer.state_dict())
            with pytest.raises(ConfigError, match="Refusing\\) does not take the saved state: KeyError"):
                engine.load_run_state_dict(saved, part=part, second=second)
            assert repr(before) == repr(dict(vars(part)) if is_unbegun else part.state_dict())
            assert (repr(optimizer.state_dict()), second.parts) == (rates, [0, 0])
        return None

    saved = simulate(rank, 2)
    simulate(lambda group: rank(group, saved[group.rank()]), 2)


def test_a_scaler_that_has_begun_goes_back():
    def rank(group, saved=None):
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0 if saved is None else 2.0, growth_interval=1)
        second = Refusing(saved is None)
        with attach(model, optimizer, "bsp", process_group=group, scaler=scaler) as engine:
            scaler.scale(model(torch.ones(1, 3)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            if saved is None:
                return copy.deepcopy(engine.run_state_dict(second=second))
            before = scaler.state_dict()
            assert before["scale"] != saved["scaler"]["scale"]
            with pytest.raises(ConfigError, match="does not take the saved state"):
                engine.load_run_state_dict(saved, second=second)
            assert scaler.state_dict() == before
        return None

    saved = simulate(rank, 2)
    simulate(lambda group: rank(group, saved[group.rank()]), 2)
