"""Data sets of one type and length, made anew or different ones, which something may still hold."""

from __future__ import annotations

import gc
from itertools import chain

import pytest
import torch
from torch.utils.data import Dataset

import relaxcomm

SAMPLES, EPOCHS = 24, 4


class Data(Dataset):
    def __init__(self, *, is_in_cycle=False):
        self.read = self.load if is_in_cycle else None

    def load(self, index):
        return index

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index


def attach(group):
    model = torch.nn.Linear(1, 1)
    return relaxcomm.attach(model, torch.optim.SGD(model.parameters()), "bsp", process_group=group)


def made_anew(group, way):
    """Epochs of data sets that are made anew, as each rank reads them."""
    epochs, held, batches = [], [], None
    with attach(group) as engine:
        for _ in range(EPOCHS):
            loader = engine.loader(Data(is_in_cycle=way == "cycle"), batch_size=4)
            if way == "held" or (way == "held on one rank" and group.rank() == 0):
                held.append(loader)
            if way == "left":
                batches = iter(loader)
                epochs.append([next(batches).tolist() for _ in range(2)])
            else:
                epochs.append([batch.tolist() for batch in loader])
    return epochs


@pytest.mark.every_other("way")
@pytest.mark.parametrize("way", ["cycle", "held", "held on one rank", "left"])
def test_data_made_anew_are_read_in_another_order(way, caplog):
    gc.disable()
    try:
        ranks = relaxcomm.simulate(lambda group: made_anew(group, way), 2)
    finally:
        gc.enable()
    for parts in zip(*ranks, strict=True):
        read = list(chain(*chain(*parts)))
        assert len(set(read)) == len(read) == (16 if way == "left" else SAMPLES), "no sample comes twice"
    assert len({str(epoch) for epoch in ranks[0]}) == EPOCHS
    assert len(caplog.messages) == (way != "cycle"), "once"
    assert all("make it once, before the loop over epochs" in one for one in caplog.messages)


def in_turn(group, saved=None):
    """Epochs of two data sets, and what is saved in the middle of the second's second one."""
    with attach(group) as engine:
        if saved is not None:
            engine.load_state_dict(saved)
        loaders = [engine.loader(one, batch_size=4) for one in (Data(), Data())]
        read = [[], []]
        while loaders[1].epoch < 3:
            for loader, mine in zip(loaders, read, strict=True):
                if loader.epoch < 3:
                    mine.append([])
                for index, batch in enumerate(loader if loader.epoch < 3 else ()):
                    mine[-1].append(batch.tolist())
                    if saved is None and loader is loaders[1] and (loader.epoch, index) == (2, 0):
                        saved = engine.state_dict()
        return read, saved


def test_two_data_sets_in_turn_have_epochs_of_their_own(caplog):
    for first, second in zip(
        whole := relaxcomm.simulate(in_turn, 2),
        relaxcomm.simulate(lambda group: in_turn(group, whole[group.rank()][1]), 2),
        strict=True,
    ):
        (one, other), _ = first
        assert [len(epoch) for epoch in one + other] == [3] * 6
        assert len({str(epoch) for epoch in one}) == len({str(epoch) for epoch in other}) == 3
        assert second[0] == [one[2:], [other[1][1:], other[2]]]
    assert not caplog.messages, "they were made before one was read"


def test_orders_go_on_behind_those_of_data_that_are_held():
    def program(group):
        kept = Data()
        with attach(group) as engine:
            loader = engine.loader(kept, batch_size=4)
            orders = [[batch.tolist() for batch in loader] for _ in range(2)]
            other = engine.loader(Data(), batch_size=4)
            assert other.epoch == 0
            orders.append([batch.tolist() for batch in other])
            assert (loader.epoch, other.epoch) == (2, 1)
            other.epoch = 0
            assert [batch.tolist() for batch in other] == orders[2]
            assert [batch.tolist() for batch in loader] == orders[2], "as its third epoch would be"
            return len({str(order) for order in orders})

    assert relaxcomm.simulate(program, 2) == [3, 3]


def train_and_val(group, stop, saved=None, *, with_val=True, holds=False):
    """Orders of data made anew for each epoch, up to a batch of an epoch, or from what was saved there on."""
    first = 0 if saved is None else stop[0] + (stop[1] == "val")
    held, orders = [], []
    with attach(group) as engine:
        if saved is not None:
            engine.load_state_dict(saved)
        for epoch in range(first, 4):
            train = engine.loader(Data(), batch_size=4)
            held += [train] if holds else []
            orders.append([])
            for index, batch in enumerate(train):
                orders[-1].append(batch.tolist())
                if saved is None and (epoch, index) == stop:
                    return orders, engine.state_dict()
            if with_val and epoch % 2 == 0:
                val = engine.loader(Data(), batch_size=4)
                orders.append([batch.tolist() for batch in val])
                if saved is None and (epoch, "val") == stop:
                    return orders, engine.state_dict()
    return orders, None


@pytest.mark.every_other("settings", "stop")
@pytest.mark.parametrize("settings", [{}, {"with_val": False, "holds": True}], ids=["with val", "held"])
@pytest.mark.parametrize("stop", [(1, 1), (2, 0)], ids=str)
def test_data_made_anew_go_on_in_the_orders_of_a_whole_run(settings, stop):
    def ranks(stop, saved=None):
        saved = saved or [None, None]
        return relaxcomm.simulate(
            lambda group: train_and_val(group, stop, saved[group.rank()], **settings), 2
        )

    whole, parts = ranks(None), ranks(stop)
    rests = ranks(stop, [saved for _, saved in parts])
    for (orders, _), (before, _), (after, _) in zip(whole, parts, rests, strict=True):
        assert [*before[:-1], before[-1] + after[0], *after[1:]] == orders


def test_data_made_anew_go_on_behind_the_orders_of_others_that_are_not_made_yet():
    def ranks(stop, saved=(None, None)):
        return relaxcomm.simulate(lambda group: train_and_val(group, stop, saved[group.rank()]), 2)

    whole, parts = ranks(None), ranks((0, "val"))
    rests = ranks((0, "val"), [saved for _, saved in parts])
    for (orders, _), (before, _), (after, _) in zip(whole, parts, rests, strict=True):
        assert [*before, *after] == orders


def resumed(group, saved, reads):
    """What is read of two data sets of different lengths, and what is saved then."""
    with attach(group) as engine:
        if saved is not None:
            engine.load_run_state_dict(saved[group.rank()])
        made = {name: engine.loader(range(samples), batch_size=2) for name, samples in reads.items()}
        read = {name: [batch.tolist() for batch in loader] for name, loader in made.items()}
        begun = iter(() if saved else made["other"])
        next(begun, None)  # of its second epoch, which is not over
        return read, engine.run_state_dict()


def test_the_place_of_data_that_are_not_read_stays_from_restart_to_restart():
    def ranks(saved, **reads):
        read, states = zip(*relaxcomm.simulate(lambda group: resumed(group, saved, reads), 3), strict=True)
        return read, states

    _, saved = ranks(None, one=12, other=18)
    expected, _ = ranks(saved, one=12, other=18)
    for reads in ({}, {"one": 12}):
        _, again = ranks(saved, **reads)
        found, _ = ranks(again, other=18)
        for rank, (read, whole) in enumerate(zip(found, expected, strict=True)):
            assert read["other"] == whole["other"], (reads, rank)
            assert len(read["other"]) == 2, "of 3 batches one was read"


def test_data_of_another_length_than_before_a_restart_are_told_of_once(caplog):
    def program(group, *reads):
        saved = None
        for lengths in reads:
            _, state = resumed(group, saved, lengths)
            saved = {group.rank(): state}

    first, more = {"other": 18, "val": 12}, {"val": 12, "other": 18, "new": 30}
    relaxcomm.simulate(lambda group: program(group, first, more), 2)
    assert not caplog.messages, "each goes on, or is new"
    other = {"val": 12, "other": 24, "new": 30}
    relaxcomm.simulate(lambda group: program(group, first, other), 2)
    (told,) = caplog.messages
    assert "builtins.range, 24 samples) begins at epoch 0" in told
    assert "but for 18 samples of this type" in told
