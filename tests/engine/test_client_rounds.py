"""Rounds of clients that are cut by a checkpoint, or left before their end."""

from __future__ import annotations

import contextlib
import copy
from itertools import islice

import pytest
import torch

import relaxcomm
from relaxcomm.testing import PretendGpu
from tests.models import take_step

CLIENTS = {"algorithm": {"name": "fedavg", "clients": 2}}  # of 4 batches each, on one worker


def round_of(group, stop=None, saved=None):
    """What a round has moved by steps of -1, or the state after some of them."""
    model = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with relaxcomm.attach(model, optimizer, CLIENTS, process_group=group) as engine:
        if saved is not None:
            model.load_state_dict(saved["model"])
            engine.load_state_dict(saved["engine"])
        loader = engine.loader(range(16), batch_size=2)
        for index, _ in enumerate(loader, start=1):
            take_step(model(torch.ones(1, 1, dtype=torch.double)).sum(), optimizer)
            if index == stop:
                kept = {"model": model.state_dict(), "engine": engine.state_dict()}
                return copy.deepcopy(kept)
        return model.weight.item(), engine.statistics["synchronisations"]


@pytest.mark.filterwarnings("ignore:fedavg has never exchanged")
@pytest.mark.parametrize("stop", [3, 4, 5, 8])
def test_a_client_whose_last_step_was_saved_counts(stop):
    (saved,) = relaxcomm.simulate(lambda group: round_of(group, stop), 1)
    assert relaxcomm.simulate(lambda group: round_of(group, None, saved), 1) == [(-4.0, 1)]


def left(group, steps, batches):
    """A round that is left, and then a whole one."""
    model = torch.nn.Linear(1, 1, bias=False).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with relaxcomm.attach(model, optimizer, CLIENTS, process_group=group) as engine:
        for size in (batches, None):
            for index, _ in enumerate(engine.loader(range(16), batch_size=2)):
                if size is None or index < steps:
                    take_step(model(torch.ones(1, 1, dtype=torch.double)).sum(), optimizer)
                if index + 1 == size:
                    break
        return engine.statistics["synchronisations"]


@pytest.mark.parametrize(("steps", "batches"), [(1, 1), (1, 5), (4, 5), (6, 6)])
def test_a_round_that_was_left_does_not_count_in_the_next(steps, batches):
    with pytest.raises(relaxcomm.UsageError, match="a round was left before its end"):
        relaxcomm.simulate(lambda group: left(group, steps, batches), 1)


def test_a_loader_knows_how_many_batches_are_to_come():
    def program(group):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        config = {"algorithm": {"name": "fedavg", "clients": 5, "fraction": 0.5, "epochs": 2}}
        with relaxcomm.attach(model, optimizer, config, process_group=group) as engine:
            loader = engine.loader(range(43), batch_size=4)
            told = [loader.batches_until(4)]
            counted = []
            for _ in range(4):
                assert len(loader) == loader.batches_until(loader.epoch + 1)
                counted.append(0)
                for _ in loader:
                    counted[-1] += 1
                    model(torch.ones(1, 1)).sum().backward()
                    optimizer.step()
                told.append(loader.batches_until(4))
        return told, [sum(counted[at:]) for at in range(5)]

    for told, counted in relaxcomm.simulate(program, 2):
        assert told == counted


@pytest.mark.parametrize("size", [1, 2])
def test_a_last_round_that_was_left_is_given_up(size, caplog):
    """Also at its last batch: a loop that stops there has not come to the round's end."""

    def program(group, last):
        model = torch.nn.Linear(1, 1, bias=False).double()
        torch.nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with relaxcomm.attach(model, optimizer, CLIENTS, process_group=group) as engine:
            for stop in (None, last):
                loader = engine.loader(range(16), batch_size=2)
                for _ in islice(loader, stop and loader.batches_left if stop == "end" else stop):
                    take_step(model(torch.ones(1, 1, dtype=torch.double)).sum(), optimizer)
        return model.weight.item()

    expected = relaxcomm.simulate(lambda group: program(group, 0), size)
    assert not caplog.messages
    for stop in (3, 4, "end"):
        caplog.clear()
        assert relaxcomm.simulate(lambda group, stop=stop: program(group, stop), size) == expected
        (message,) = caplog.messages
        assert "the last round was left before its end" in message


def test_a_batch_may_be_looked_at_before_training():
    assert relaxcomm.simulate(lambda group: left(group, 0, 1), 2) == [1, 1]


class StepError(Exception):
    """An optimizer's step has failed."""


def gradients_with_a_proximal_term(group, failing):
    """Of three batches, with which one step fails."""
    fails, seen = [], []

    def look(optimizer, *_):
        seen.append(model.weight.grad.item())
        if fails.pop():
            raise StepError

    model = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    config = {"algorithm": {"name": "fedavg", "proximal": 0.5}, "bucket_bytes": 8}
    with relaxcomm.attach(model, optimizer, config, process_group=group) as engine:
        optimizer.register_step_pre_hook(look)
        for index, _ in enumerate(engine.loader(range(18), batch_size=2)):
            optimizer.zero_grad()
            model(torch.ones(1, 1, dtype=torch.double)).sum().backward()
            fails.append(index == failing)
            with contextlib.suppress(StepError):
                optimizer.step()
    return seen


def test_a_batch_after_a_step_that_failed_has_its_proximal_term():
    found = relaxcomm.simulate(lambda group: gradients_with_a_proximal_term(group, failing=1), 3)
    assert found == [[1.0, 0.5, 0.5]] * 3  # moved by -1 once, which pulls by -0.5


def test_on_a_gpu_all_learn_before_the_next_round_of_what_was_not_finite(monkeypatch):
    """Flags are read two steps late, and who plays fewer clients has made fewer steps."""
    monkeypatch.setattr("relaxcomm.network.in_process.tensors_of", lambda operation: [])

    def train(group):
        with gpu.in_thread():
            model = torch.nn.Linear(4, 2).to("cuda")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            settings = {"algorithm": {"name": "fedavg", "clients": 5}}
            with relaxcomm.attach(model, optimizer, settings, process_group=group) as engine:
                loader = engine.loader(torch.ones(20, 4), batch_size=4)
                for round in range(5):
                    for batch in loader:
                        take_step(model(batch.to("cuda")).square().mean(), optimizer)
                        if (round, group.rank()) == (1, 2):
                            model.weight.data.fill_(torch.nan)

    def told(group):
        with pytest.raises(relaxcomm.NonFiniteError, match=r"NaN .* in parameter weight on rank 2"):
            train(group)

    with PretendGpu() as gpu:
        relaxcomm.simulate(told, 3)
