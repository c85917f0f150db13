"""A loader made once, one made for each epoch, and one made by a resumed run read the same samples."""

from __future__ import annotations

import copy
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import relaxcomm
from tests.engine.harness import World, in_process, on_gloo, values

SAMPLES = 35
DATA = TensorDataset(torch.arange(SAMPLES), torch.arange(SAMPLES) % 2)


class Epochs:
    """A small training run that notes the samples of every epoch.

    Args:
        world: where it runs.
        idiom: "outside", a loader made once; "inside", one for each epoch; "anew", with its data set.
        algorithm: what exchanges.
        options: of the loader.
    """

    def __init__(self, world: World, idiom: str, algorithm: object = "bsp", **options):
        torch.manual_seed(1)
        self.model = nn.Linear(1, 1).double()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.5)
        self.engine = world.attach(self.model, self.optimizer, {"algorithm": algorithm, "seed": 3})
        self.idiom, self.options, self.data = idiom, {"batch_size": 4, **options}, DATA
        self.read = []
        self.loader = self.make() if idiom == "outside" else None

    def make(self):
        data = TensorDataset(*DATA.tensors) if self.idiom == "anew" else self.data
        return self.engine.loader(data, **self.options)

    def train(self, epochs: int, save_at: tuple[int, int] | None = None):
        """Read some epochs; what was saved in one of them after so many batches, if it was asked for."""
        kept = None
        for epoch in range(epochs):
            self.read.append([])
            for x, _ in self.loader or self.make():
                self.model(x[:, None].double() / SAMPLES).square().mean().backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.read[-1].append(x.tolist())
                if (epoch, len(self.read[-1])) == save_at:
                    kept = self.save()
        return kept

    def save(self):
        parts = {"model": self.model, "optimizer": self.optimizer, "engine": self.engine}
        return {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}

    def load(self, saved):
        for name in ("model", "optimizer", "engine"):
            getattr(self, name).load_state_dict(saved[name])


def whole(world, idiom, epochs, algorithm="bsp", options=None):
    run = Epochs(world, idiom, algorithm, **(options or {}))
    with run.engine:
        run.train(epochs)
    return run.read, values(run.model)


ALGORITHMS = {
    "bsp": "bsp",
    "adaptive": {"name": "adaptive_local_sgd", "steps": 2, "tolerance": 0.05, "max_batch_size": 7},
    "fedavg": {"name": "fedavg", "clients": 5, "epochs": 2},
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_loader_made_for_each_epoch_goes_on_with_the_next(name):
    once = in_process(whole, 3, "outside", 6, ALGORITHMS[name])
    for idiom in ("inside", "anew"):
        for (read, model), (expected, trained) in zip(
            in_process(whole, 3, idiom, 6, ALGORITHMS[name]), once, strict=True
        ):
            assert read == expected
            np.testing.assert_array_equal(model, trained)
    epochs = next(read for read, _ in once)
    assert len({str(epoch) for epoch in epochs}) == 6, "every epoch is shuffled anew"


@pytest.mark.parametrize("idiom", ["outside", "inside"])
def test_every_sample_is_seen_and_leftovers_rotate(idiom):
    ranks = [read for read, _ in in_process(whole, 4, idiom, 12)]
    seen = [set(chain(*chain(*(read[epoch] for read in ranks)))) for epoch in range(12)]
    assert {len(epoch) for epoch in seen} == {32}
    assert all(len(a | b) == SAMPLES for a, b in pairwise(seen))
    assert len({frozenset(epoch) for epoch in seen}) > 10, "others sit out in each epoch"


@pytest.mark.ranks
def test_on_gloo(debug):
    expected = [read for read, _ in in_process(whole, 3, "outside", 3)]
    assert [read for read, _ in on_gloo(whole, 3, "inside", 3, debug=debug)] == expected


def interrupted(world, idiom, algorithm, batch, late):
    """What a run did after a checkpoint in its second epoch, and what one did that loaded it."""
    first = Epochs(world, idiom, algorithm)
    saved = first.train(4, (1, batch))
    first.engine.close()
    second = Epochs(world, "inside" if late else idiom, algorithm)  # late: the loader is made after loading
    second.load(saved)
    if late:
        second.idiom, second.loader = idiom, second.make() if idiom == "outside" else None
    second.train(3)
    second.engine.close()
    expected = [first.read[1][batch:], *first.read[2:]]
    return expected, second.read, values(first.model), values(second.model)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("idiom", ["outside", "inside"])
@pytest.mark.parametrize(("name", "batch"), [("bsp", 1), ("bsp", 3), ("adaptive", 1), ("fedavg", 3)])
def test_a_run_resumes_with_the_next_batch(name, batch, idiom, late):
    """An epoch of bsp has 3 batches: the rest of it may be nothing."""
    for expected, read, model, resumed in in_process(interrupted, 3, idiom, ALGORITHMS[name], batch, late):
        assert read == expected
        np.testing.assert_array_equal(resumed, model)


def test_an_epoch_that_was_left_is_over(tmp_path):
    def program(group):
        run = Epochs(World(group.rank(), group.size(), group), "outside")
        for _ in range(2):
            next(iter(run.loader))
        state = run.engine.state_dict()
        assert run.loader.epoch == 2
        again = Epochs(World(group.rank(), group.size(), group), "outside")
        again.engine.load_state_dict(state)
        assert again.loader.epoch == 2
        again.loader.epoch = 1
        assert again.loader.epoch == 1
        return [[x.tolist() for x, _ in run.loader], [x.tolist() for x, _ in again.loader]]

    for two, one in relaxcomm.simulate(program, 2):
        assert [len(batch) for batch in one] == [len(batch) for batch in two]
        assert one != two


def test_each_data_set_has_epochs_of_its_own():
    other = TensorDataset(*DATA.tensors)

    def program(group):
        run = Epochs(World(group.rank(), group.size(), group), "inside")
        run.train(3)
        first = [x.tolist() for x, _ in run.engine.loader(other, batch_size=4)]
        return run.read, first, run.engine.loader(DATA, batch_size=5).epoch

    for read, first, epoch in relaxcomm.simulate(program, 3):
        assert len(first) == len(read[0])
        assert first not in read
        assert epoch == 3


class Noisy(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.rand(())


def augmented(group, idiom):
    run = Epochs(World(group.rank(), group.size(), group), idiom)
    data, found = Noisy(), []
    loader = run.engine.loader(data, batch_size=6, num_workers=1)
    for _ in range(2):
        found += [batch.tolist() for batch in loader]
        if idiom == "inside":
            loader = run.engine.loader(data, batch_size=6, num_workers=1)
    return found


def test_what_loading_processes_draw_differs_between_epochs_and_ranks():
    once, anew = (
        relaxcomm.simulate(lambda group, i=i: augmented(group, i), 2) for i in ("outside", "inside")
    )
    assert once == anew
    assert len({str(batch) for rank in once for batch in rank}) == 4


def second_loader(group, algorithm, options):
    run = Epochs(World(group.rank(), group.size(), group), "outside", algorithm)
    run.engine.loader(TensorDataset(torch.arange(30)) if "data" in options else DATA, **options["loader"])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("adaptive", {"loader": {"batch_size": 5}}, "chooses the batch size itself, beginning with 4"),
        ("adaptive", {"data": "other", "loader": {"batch_size": 4}}, "second one, for other data"),
        ("fedavg", {"data": "other", "loader": {"batch_size": 4}}, "second one, for other data"),
        (
            "bsp",
            {"loader": {"batch_size": 4, "num_workers": 1, "persistent_workers": True}},
            "make one, before the loop over epochs",
        ),
    ],
)
def test_second_loaders_that_would_not_do_what_they_say_are_refused(name, options, message):
    with pytest.raises(relaxcomm.UsageError, match=message):
        relaxcomm.simulate(lambda group: second_loader(group, ALGORITHMS[name], options), 2)


def two_data_sets(group, make):
    """Training and evaluation data of the same type and length, which loaders alone have."""
    run = Epochs(World(group.rank(), group.size(), group), "outside")
    data = lambda begin: make(torch.arange(begin, begin + 12))  # noqa: E731  # two names would keep them
    training, epochs, evaluated = run.engine.loader(data(0), batch_size=2), [], []
    while training.epoch < 4:
        epochs.append([int(x) for (x,) in zip(*[chain(*(b for b in training))], strict=True)])
        evaluated.append([int(x) for batch in run.engine.loader(data(100), batch_size=2) for x in batch])
    return epochs, evaluated


class Held(Dataset):
    def __init__(self, values) -> None:
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return self.values[index]


@pytest.mark.parametrize("make", [Held, list], ids=["data set", "list"])
def test_another_data_set_of_its_length_leaves_training_data_alone(make):
    for epochs, evaluated in relaxcomm.simulate(lambda group: two_data_sets(group, make), 3):
        assert [len(epoch) for epoch in epochs] == [4] * 4
        assert all(max(epoch) < 100 for epoch in epochs)
        assert [len(epoch) for epoch in evaluated] == [4] * 4
        assert all(min(epoch) >= 100 for epoch in evaluated)


def test_clients_have_one_data_set():
    """A loader of other data is refused when it is read, as data that were made anew might be the same."""

    def program(group):
        run = Epochs(World(group.rank(), group.size(), group), "outside", ALGORITHMS["fedavg"])
        run.train(1)
        with pytest.raises(relaxcomm.UsageError, match="a second one, for other data"):
            next(iter(run.engine.loader(TensorDataset(*DATA.tensors), batch_size=4)))

    relaxcomm.simulate(program, 3)
