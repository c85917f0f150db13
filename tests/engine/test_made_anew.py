"""Loaders that are made in each epoch, for data sets that are made anew, too, go on in the next epoch."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset

from relaxcomm import UsageError, attach, simulate
from relaxcomm.data import split_batch
from tests.engine.harness import engine_state


class Numbers(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.tensor([float(index)])


MAKE = {
    "a Dataset": Numbers,
    "a list": lambda: [torch.tensor([float(one)]) for one in range(24)],
    "a range": lambda: range(24),
}


def epochs(group, make, number=4):
    """Which samples each epoch has, in order, and what the loader calls it."""
    model = torch.nn.Linear(1, 1)
    seen = []
    with attach(model, torch.optim.SGD(model.parameters()), "bsp", process_group=group) as engine:
        for _ in range(number):
            loader = engine.loader(make(), batch_size=4)
            seen.append([int(one) for batch in loader for one in batch])
            assert loader.epoch == len(seen)
    return seen


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_each_is_the_next_epoch(make):
    kept = make()
    once = simulate(lambda group: epochs(group, lambda: kept), 3)
    assert simulate(lambda group: epochs(group, make), 3) == once
    for seen in once:
        assert len({tuple(one) for one in seen}) == len(seen)


def test_a_checkpoint_has_data_once_whose_loader_is_made_in_each_epoch():
    data = Numbers()

    def rank(group):
        model = torch.nn.Linear(1, 1)
        with attach(model, torch.optim.SGD(model.parameters()), "bsp", process_group=group) as engine:
            for _ in range(2):
                list(engine.loader(data, batch_size=4))
            return [one["epoch"] for one in engine_state(engine)["loaders"]]

    assert simulate(rank, 3) == [[2]] * 3


def epoch_of(engine, make):
    """A loop's body in a function of its own: which epoch the loader says is next before it is read."""
    loader = engine.loader(make(), batch_size=4)
    begins = loader.epoch
    for _ in loader:
        pass
    return begins


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_where_nobody_has_the_last_one_the_epoch_is_known_before_reading(make):
    def rank(group):
        model = torch.nn.Linear(1, 1)
        with attach(model, torch.optim.SGD(model.parameters()), "bsp", process_group=group) as engine:
            return [epoch_of(engine, make) for _ in range(3)]

    assert simulate(rank, 2) == [[0, 1, 2]] * 2


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_data_sets_of_one_kind_that_are_kept_count_each_for_itself(make):
    def rank(group):
        model, first, second = torch.nn.Linear(1, 1), make(), make()
        with attach(model, torch.optim.SGD(model.parameters()), "bsp", process_group=group) as engine:
            loaders = engine.loader(make(), batch_size=4), engine.loader(make(), batch_size=4)
            for epoch in range(3):
                for one in (first, second):
                    loader = engine.loader(one, batch_size=4)
                    for _ in loader:
                        pass
                    assert loader.epoch == epoch + 1
                for loader in loaders:
                    for _ in loader:
                        pass
                    assert loader.epoch == epoch + 1

    simulate(rank, 3)


@pytest.mark.parametrize(
    "algorithm", ["fedavg", {"name": "adaptive_local_sgd", "max_batch_size": 8}], ids=str
)
def test_algorithms_that_follow_the_loader(algorithm):
    def rank(group):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        with attach(model, optimizer, {"algorithm": algorithm}, process_group=group) as engine:
            for _ in range(3):
                loader = engine.loader(Numbers(), batch_size=4)
                for batch in loader:
                    optimizer.zero_grad()
                    model(batch).square().mean().backward()
                    optimizer.step()
            return loader.epoch

    assert simulate(rank, 3) == [3, 3, 3]


def test_batches_that_grow_end_at_an_epoch():
    """With `drop_last` a batch beyond it would leave out all; whoever gives the size is told so."""

    def rank(group):
        model = torch.nn.Linear(1, 1)
        config = {"algorithm": {"name": "adaptive_local_sgd", "max_batch_size": 64}}
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        with attach(model, optimizer, config, process_group=group) as engine:
            loader = engine.loader(Numbers(), batch_size=2, drop_last=True)
            loader.sizes.resize(64.0)
            return [len(batch) for batch in loader]

    assert simulate(rank, 3) == [[8], [8], [8]]


@pytest.mark.parametrize("size", [0, -1])
def test_parts_without_samples_are_refused(size):
    with pytest.raises(UsageError, match="use at least 1"):
        list(split_batch(torch.ones(3), size))
