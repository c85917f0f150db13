"""The shares of a data set: disjoint, equal, complete over two epochs, deterministic."""

import pytest
import torch
from hypothesis import given, strategies as st
from torch.utils.data import DataLoader, IterableDataset

from relaxcomm.data import ShareSampler, make_loader
from relaxcomm.errors import ConfigError
from relaxcomm.network.transport import Membership


@st.composite
def layouts(draw):
    world_size = draw(st.integers(1, 6))
    batch_size = draw(st.integers(1, 9))
    drop_last = draw(st.booleans())
    size = draw(st.integers(world_size * batch_size, 150))
    return {"size": size, "batch_size": batch_size, "drop_last": drop_last}, world_size


def samplers(settings, world_size, seed=3):
    return [
        ShareSampler(**settings, membership=Membership(r, world_size), seed=seed) for r in range(world_size)
    ]


@given(layouts())
def test_shares_are_disjoint_and_equal_and_nearly_complete(layout):
    settings, world_size = layout
    batches = [list(sampler) for sampler in samplers(settings, world_size)]
    shapes = [[len(batch) for batch in rank] for rank in batches]
    seen = [index for rank in batches for batch in rank for index in batch]
    unit = world_size * (settings["batch_size"] if settings["drop_last"] else 1)
    assert all(shape == shapes[0] for shape in shapes)
    assert [len(sampler) for sampler in samplers(settings, world_size)] == [len(shapes[0])] * world_size
    assert len(set(seen)) == len(seen) == settings["size"] // unit * unit
    assert set(seen) <= set(range(settings["size"]))
    if settings["drop_last"]:
        assert set(shapes[0]) == {settings["batch_size"]}


@given(layouts(), st.integers(0, 40))
def test_two_consecutive_epochs_hold_every_sample(layout, epoch):
    settings, world_size = layout
    seen = {i for s in samplers(settings, world_size) for e in (epoch, epoch + 1) for i in s.share(e)}
    assert seen == set(range(settings["size"]))


@given(layouts())
def test_samples_sit_out_equally_often(layout):
    settings, world_size = layout
    counts = dict.fromkeys(range(settings["size"]), 0)
    for sampler in samplers(settings, world_size):
        for epoch in range(settings["size"]):  # after `size` epochs the rotation has come full circle
            for index in sampler.share(epoch):
                counts[index] += 1
    assert len(set(counts.values())) == 1


@pytest.mark.parametrize("num_workers", [0, 1])
def test_epoch_advances_at_each_iter_and_is_deterministic(num_workers):
    def run(num_workers=0):
        return make_loader(
            range(20), batch_size=4, membership=Membership(1, 2), seed=5, num_workers=num_workers
        )

    first, second = run(), run(num_workers)  # loading processes change nothing
    history = [[batch.tolist() for batch in first] for _ in range(3)]
    assert history == [[batch.tolist() for batch in second] for _ in range(3)]
    assert history[0] != history[1] != history[2]
    iter(second)  # abandoned before its first batch: it counts all the same, so ranks cannot fall apart
    assert second.epoch == 4
    second.epoch = 1
    assert [batch.tolist() for batch in second] == history[1]


class Drawn:
    """Samples of random numbers, as an augmentation draws them in a loading process."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.rand(())


def test_the_rest_of_an_epoch_is_not_loaded_with_the_numbers_of_its_beginning():
    stopped, resumed = (
        make_loader(Drawn(), batch_size=2, membership=Membership(0, 1), seed=5, num_workers=1)
        for _ in range(2)
    )
    batches = iter(stopped)
    begins = [next(batches).tolist() for _ in range(2)]
    resumed.progress.restore(stopped.progress.export())
    rest = [batch.tolist() for batch in resumed]
    assert len(rest) == 2
    assert not {number for batch in begins for number in batch} & {
        number for batch in rest for number in batch
    }


def test_seed_changes_the_order():
    orders = [samplers({"size": 30, "batch_size": 30}, 1, seed=seed)[0].share(0) for seed in (0, 1)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(30))


def test_iterating_leaves_the_global_random_stream_alone():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    list(make_loader(range(8), batch_size=2, membership=Membership(0, 2), seed=1))
    assert torch.equal(torch.rand(3), expected)


def test_loader_options_reach_the_loader():
    loader = make_loader(
        range(4),
        batch_size=2,
        membership=Membership(0, 1),
        seed=0,
        collate_fn=tuple,
        num_workers=1,
        prefetch_factor=1,
        persistent_workers=True,
    )
    assert (loader.num_workers, loader.prefetch_factor) == (1, 1)
    assert [type(batch) for batch in loader] == [tuple, tuple]
    first, again = loader._iterator, list(loader)
    assert loader._iterator is first, "the loading process goes on in the next epoch"
    assert len(again) == 2


@pytest.mark.parametrize(
    ("size", "settings", "message"),
    [
        (2, {"batch_size": 1}, "2 samples, too few for 3 workers; use fewer"),
        (5, {"batch_size": 2, "drop_last": True}, "full batches of 2; lower"),
        (5, {"batch_size": 0}, "batch_size is 0"),
    ],
)
def test_too_few_samples_are_refused(size, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_loader(range(size), membership=Membership(0, 3), seed=0, **settings)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))

    def __len__(self):
        return 3


class Lazy:
    def __getitem__(self, index):
        return index


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (DataLoader(range(4)), {}, r"DataLoader makes batches.*engine\.loader\(loader\.dataset, batch_size"),
        (Stream(), {}, r"Stream is an IterableDataset.*DataLoader of your own.*islice.*engine\.join"),
        (Lazy(), {}, "Lazy has no length.*give it __len__.*DataLoader of your own"),
        (range(8), {"shuffle": True}, "shuffles anew in every epoch; leave shuffle out"),
        (range(8), {"shuffle": False}, "partition seldp.*plain DataLoader for evaluation"),
        (range(8), {"sampler": [1]}, "chooses the samples itself.*leave sampler out"),
        (range(8), {"batch_sampler": [[1]]}, "leave batch_sampler out"),
        (range(8), {"generator": torch.Generator()}, "leave generator out and set seed"),
        (range(8), {"pin_memori": True}, "no option 'pin_memori'; did you mean 'pin_memory'.*collate_fn"),
    ],
)
def test_data_and_options_that_cannot_be_honoured_are_refused(data, options, message):
    with pytest.raises(ConfigError, match=message):
        make_loader(data, batch_size=1, membership=Membership(0, 1), seed=0, **options)
