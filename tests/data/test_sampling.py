"""What all partitions share: equal batches, a changing batch size, injection, resuming, counting."""

from __future__ import annotations

from itertools import chain, islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils.data import TensorDataset

from relaxcomm import ConfigError
from relaxcomm.data import (
    ClientSampler,
    Injection,
    RoundPlan,
    ShareSampler,
    by_label,
    dirichlet,
    disjoint,
    iid,
    make_loader,
    seldp,
)
from relaxcomm.data.position import Progress
from relaxcomm.fields.rounding import fewest
from relaxcomm.network.transport import Membership

PARTITIONS = st.sampled_from(
    [
        iid(),
        disjoint(),
        by_label(),
        seldp(),
        dirichlet(alpha=1e-9),
        dirichlet(alpha=0.3),
        dirichlet(alpha=1e9),
    ]
)
INJECTIONS = st.none() | st.builds(Injection, alpha=st.floats(0.01, 1), beta=st.floats(0.01, 1))


@st.composite
def layouts(draw):
    workers, batch_size = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    size = draw(st.integers(workers * batch_size, 130))
    more = {"drop_last": draw(st.booleans()), "injection": draw(INJECTIONS), "partition": draw(PARTITIONS)}
    return workers, {"size": size, "batch_size": batch_size, "seed": draw(st.integers(0, 9)), **more}


def make(rank, workers, layout):
    labels = np.random.default_rng(layout["seed"]).integers(0, 4, layout["size"])
    return ShareSampler(**layout, membership=Membership(rank, workers), labels=labels)


@settings(deadline=None)
@given(layouts())
def test_all_ranks_make_as_many_batches_as_they_say(layout):
    workers, layout = layout
    made = [make(rank, workers, layout) for rank in range(workers)]
    for _ in range(2):
        announced = {len(sampler) for sampler in made}
        drawn = [list(sampler) for sampler in made]
        assert announced == {len(batches) for batches in drawn} != {0}
        assert all(0 <= index < layout["size"] for index in chain(*chain(*drawn)))
        if layout["injection"] is None:
            assert len({tuple(map(len, batches)) for batches in drawn}) == 1


@settings(deadline=None)
@given(layouts(), st.integers(0, 30))
def test_an_epoch_can_be_resumed(layout, epoch):
    workers, layout = layout
    for rank in range(workers):
        resumed, ran = make(rank, workers, layout), make(rank, workers, layout)
        ran.epoch = resumed.epoch = epoch
        first, second = list(ran), list(ran)
        resumed.epoch = epoch + 1
        assert list(resumed) == second
        assert len(first) == len(second)
        assert resumed.epoch == epoch + 2


@settings(deadline=None)
@given(st.integers(1, 7), st.integers(7, 90), st.integers(0, 9))
def test_seldp_of_any_size_reads_all_data_round_and_round(workers, size, seed):
    layout = {"size": size, "batch_size": 2, "seed": seed, "partition": seldp()}
    circles = []
    for rank in range(workers):
        sampler = make(rank, workers, layout)
        read = list(chain(*chain(*(list(sampler) for _ in range(2 * workers + 2)))))
        circle = read[:size]
        assert sorted(circle) == list(range(size))
        assert read == (circle * 4)[: len(read)]
        circles.append(circle)
    places = [circles[0].index(circle[0]) for circle in circles]
    lengths = [stop - start for start, stop in zip(places, [*places[1:], size], strict=True)]
    assert sorted(lengths) == sorted(size // workers + (rank < size % workers) for rank in range(workers))
    for place, circle in zip(places, circles, strict=True):
        assert circle == circles[0][place:] + circles[0][:place]


@settings(deadline=None)
@given(st.integers(2, 8), st.integers(8, 40), st.floats(0.2, 1), st.floats(0.2, 1), st.integers(0, 9))
def test_injection_keeps_the_batch_about_as_large(workers, batch_size, alpha, beta, seed):
    own = batch_size / (1 + alpha * beta * workers)
    layout = {"size": 60 * batch_size * workers, "batch_size": batch_size, "seed": seed}
    more = {"partition": disjoint(), "injection": Injection(alpha=alpha, beta=beta)}
    sizes = [len(b) for rank in range(workers) for b in islice(make(rank, workers, {**layout, **more}), 30)]
    # Of N workers ceil(alpha N) share, and none with itself; whole samples: half a sample of b', and
    # half a sample or the one that is always shared from each.
    sharing = fewest(alpha, workers) * (1 - 1 / workers)
    whole = 0.5 + sharing * (0.5 * beta + max(0.5, 1 - beta * own + 0.5 * beta)) + 0.5
    assert abs(np.mean(sizes) - own * (1 + beta * sharing)) <= whole


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("injection", [None, Injection(alpha=0.5, beta=0.5)])
def test_what_is_counted_is_what_was_read_when_the_batch_size_changes(num_workers, injection):
    data = TensorDataset(torch.arange(300))
    loader = make_loader(
        data, batch_size=4, membership=Membership(1, 3), seed=0, num_workers=num_workers, injection=injection
    )
    counted, read = [], []
    loader.on_batch = counted.append
    for (batch,) in loader:
        read.append(len(batch))
        assert counted == read
        if len(read) == 2:
            loader.batch_sampler.batch_size = 16
    assert counted == read
    assert max(read) >= 16 > read[2 * num_workers]  # those that were prefetched have the old size
    assert injection is not None or sum(read) == 100


def test_an_iteration_that_was_left_disturbs_no_other():
    loader = make_loader(range(30), batch_size=4, membership=Membership(0, 3), seed=0)
    counted = []
    left = iter(loader)
    next(left)
    loader.on_batch = counted.append
    assert [len(batch) for batch in loader] == counted == [4, 4, 2]
    next(left)
    assert counted == [4, 4, 2, 4]


@pytest.mark.parametrize("partition", [iid(), disjoint(), seldp()], ids=repr)
def test_an_epoch_that_was_left_goes_on_in_its_order_with_another_batch_size(partition):
    """With drop_last it decides which samples sit out, and so the order."""

    def resumed(rank, batch_size, saved):
        progress = Progress()
        progress.restore(saved)
        of_rank = {"membership": Membership(rank, 3), "progress": progress}
        return make_loader(
            range(103), batch_size=batch_size, seed=0, drop_last=True, partition=partition, **of_rank
        )

    begun = Progress()
    begun.epoch = 1
    for rank in range(3):
        whole = list(chain(*(batch.tolist() for batch in resumed(rank, 4, begun.export()))))
        read, saved = [], begun.export()
        for batch_size, batches in ((4, 2), (5, 2), (3, 4)):
            loader = resumed(rank, batch_size, saved)
            assert loader.batches_left == (len(whole) - len(read)) // batch_size
            left = iter(loader)
            read += chain(*(batch.tolist() for batch in islice(left, batches)))
            saved = loader.progress.export()
        assert read == whole[:30]


@pytest.mark.parametrize("size", [0, -3, 0.4])
def test_a_batch_without_samples_is_refused(size):
    sampler = make(0, 3, {"size": 30, "batch_size": 4, "seed": 0})
    with pytest.raises(ConfigError, match="at least 1"):
        sampler.resize(size)
    assert sampler.batch_size == 4


def test_a_batch_that_drop_last_would_always_leave_out_is_refused():
    """By whoever sets it; one that an algorithm lets grow ends there."""
    sampler = make(0, 3, {"size": 32, "batch_size": 5, "seed": 0, "drop_last": True})
    sampler.resize(10)
    assert [len(batch) for batch in sampler] == [10]
    with pytest.raises(ConfigError, match="11, but an epoch has 10 samples a worker"):
        sampler.batch_size = 11
    sampler.resize(11)
    assert sampler.batch_size == 10


def test_a_client_of_fewer_samples_than_a_replica_has_shards_is_refused():
    alone, shard = Membership(0, 1), Membership(0, 3)
    plan = RoundPlan(epochs=1, fraction=1.0, clients=2)
    sampler = ClientSampler(4, plan, batch_size=2, membership=alone, seed=0, shard=shard)
    with pytest.raises(ConfigError, match="client 0 has 2 samples, too few for the 3 shards of a replica"):
        list(sampler.round(0))
