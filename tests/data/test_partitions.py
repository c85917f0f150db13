"""Partitions, SelDP, injection: who reads what."""

from __future__ import annotations

import math
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils.data import TensorDataset

from relaxcomm import ConfigError
from relaxcomm.config import load
from relaxcomm.data import (
    Injection,
    RoundPlan,
    ShareSampler,
    by_label,
    dirichlet,
    disjoint,
    labels_of,
    make_loader,
    seldp,
)
from relaxcomm.network.transport import Membership

LABELS = np.random.default_rng(0).integers(0, 10, 300)


def samplers(partition, size=300, workers=3, batch_size=8, labels=LABELS, **more):
    return [
        ShareSampler(
            size,
            batch_size=batch_size,
            membership=Membership(rank, workers),
            seed=5,
            partition=partition,
            labels=labels,
            **more,
        )
        for rank in range(workers)
    ]


@settings(max_examples=50, deadline=None)
@given(
    num_parts=st.integers(1, 9),
    size=st.integers(9, 200),
    alpha=st.sampled_from([0.01, 0.5, 100.0]),
    seed=st.integers(0, 99),
)
def test_every_sample_is_in_exactly_one_part(num_parts, size, alpha, seed):
    labels = np.random.default_rng(seed).integers(0, 4, size)
    for partition in (disjoint(), by_label(), dirichlet(alpha=alpha)):
        parts = partition.parts(size, labels, num_parts, seed)
        assert sorted(np.concatenate(parts).tolist()) == list(range(size))
        assert all(len(part) for part in parts)
        again = partition.parts(size, labels, num_parts, seed)
        assert all((one == other).all() for one, other in zip(parts, again, strict=True))
        if not isinstance(partition, dirichlet):
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_by_label_gives_each_part_few_classes():
    parts = by_label().parts(300, LABELS, 5, seed=0)
    assert all(len(set(LABELS[part])) <= 3 for part in parts)


def classes_held(alpha):
    parts = dirichlet(alpha=alpha).parts(300, LABELS, 5, seed=1)
    counts = np.array([np.bincount(LABELS[part], minlength=10) for part in parts])
    return (counts / counts.sum(axis=1, keepdims=True)).max(axis=1).mean()


def test_a_small_alpha_gives_few_classes_and_a_large_one_all_alike():
    assert classes_held(0.05) > 0.5
    assert classes_held(1000.0) < 0.25


def test_seldp_reads_all_data_in_a_circle_from_an_own_place():
    chunks = disjoint().parts(300, None, 3, 5)
    for rank, sampler in enumerate(samplers(seldp())):
        epochs = [sampler.share(epoch) for epoch in range(6)]
        circle = np.concatenate([*chunks[rank:], *chunks[:rank]]).tolist()
        assert list(chain(*epochs[:3])) == circle
        assert list(chain(*epochs[3:])) == circle
        assert epochs[0] == chunks[rank].tolist()


@pytest.mark.parametrize("partition", [disjoint(), by_label(), dirichlet(alpha=0.3), seldp()], ids=repr)
@pytest.mark.parametrize("drop_last", [False, True])
def test_all_ranks_make_the_same_batches_of_their_own_part(partition, drop_last):
    made = [list(sampler) for sampler in samplers(partition, drop_last=drop_last)]
    sizes = [[len(batch) for batch in batches] for batches in made]
    assert sizes[0] == sizes[1] == sizes[2]
    assert len(made[0]) == len(samplers(partition, drop_last=drop_last)[0])
    parts = partition.parts(300, LABELS, 3, 5)
    for batches, part in zip(made, parts, strict=True):
        assert set(chain(*batches)) <= set(part.tolist())


def test_over_time_a_rank_reads_its_whole_part_equally_often():
    partition = dirichlet(alpha=0.2)
    for sampler, part in zip(samplers(partition), partition.parts(300, LABELS, 3, 5), strict=True):
        read = [index for epoch in range(len(part)) for index in sampler.share(epoch)]
        counts = np.bincount(read, minlength=300)[part]
        assert counts.min() == counts.max() == 100  # 100 samples an epoch, as many epochs as samples


def test_the_batch_size_changes_from_the_next_batch():
    sampler = samplers(disjoint())[0]
    sizes = []
    for batch in sampler:
        sizes.append(len(batch))
        if len(sizes) == 2:
            sampler.resize(30)
    assert sizes == [8, 8, 30, 30, 24]


@pytest.mark.parametrize(("fraction", "clients", "count"), [(0.07, 100, 7), (0.071, 100, 8), (0.001, 10, 1)])
def test_a_fraction_that_is_a_whole_number_is_not_rounded_up(fraction, clients, count):
    """0.07 * 100 is 7.000000000000001."""
    plan = RoundPlan(epochs=1, fraction=fraction, clients=clients)
    assert len(plan.sampled(4, round=0, seed=0)) == count
    shares = {rank: [rank] for rank in range(clients)}
    sharing = Injection(alpha=fraction, beta=1.0).received(shares, clients, at=0, local=1, seed=[0])
    assert len(sharing) == count


@given(st.integers(1, 10_000).flatmap(lambda total: st.tuples(st.integers(1, total), st.just(total))))
def test_every_whole_part_of_the_clients_can_be_sampled(parts):
    wanted, clients = parts
    plan = RoundPlan(epochs=1, fraction=wanted / clients, clients=clients)
    assert len(plan.sampled(4, round=0, seed=0)) == wanted


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.5), (0.25, 1.0), (1.0, 0.25)])
def test_injection_shares_and_keeps_the_batch(alpha, beta):
    workers, batch = 4, 32
    injection = Injection(alpha=alpha, beta=beta)
    made = [list(s) for s in samplers(by_label(), workers=workers, batch_size=batch, injection=injection)]
    own = round(batch / (1 + alpha * beta * workers))
    plain = [s.share(0) for s in samplers(by_label(), workers=workers, batch_size=batch)]
    for step in range(len(made[0]) - 1):
        mine = [plain[rank][step * own : (step + 1) * own] for rank in range(workers)]
        foreign = []
        for rank in range(workers):
            assert made[rank][step][:own] == mine[rank]
            foreign.append(set(made[rank][step][own:]))
        shared = [
            {i for r in range(workers) if r != s for i in foreign[r] & set(mine[s])} for s in range(workers)
        ]
        assert sum(bool(found) for found in shared) == math.ceil(alpha * workers)
        assert all(len(found) in (0, round(beta * own)) for found in shared)
    sizes = [len(batch) for batches in made for batch in batches[:-1]]
    assert abs(np.mean(sizes) - batch) <= 0.15 * batch
    assert {len(batches) for batches in made} == {len(made[0])}


def test_a_batch_counts_when_it_is_given_out_not_when_it_was_read():
    for num_workers in (0, 2):
        dataset = TensorDataset(torch.arange(40))
        loader = make_loader(
            dataset, batch_size=4, membership=Membership(0, 2), seed=0, num_workers=num_workers
        )
        counted = []
        loader.on_batch = counted.append
        for position, _ in enumerate(loader, 1):
            assert len(counted) == position
        assert counted == [4] * 5


def test_labels_are_found_or_asked_for():
    class Listed(list):
        def __init__(self, items):
            super().__init__(items)
            self.targets = ["b", "a", "b"]

    assert labels_of(Listed([1, 2, 3])).tolist() == [1, 0, 1]
    pairs = TensorDataset(torch.zeros(3, 2), torch.tensor([5, 5, 1]))
    assert labels_of(pairs).tolist() == [1, 1, 0]
    assert labels_of([0, 0], labels=[3, 9]).tolist() == [0, 1]
    with pytest.raises(ConfigError, match=r"labels=…"):
        labels_of([1, 2, 3])
    with pytest.raises(ConfigError, match="one class for each of the 3"):
        labels_of([1, 2, 3], labels=[1, 2])
    assert labels_of([0, 0], labels=torch.tensor([2.0, 1.0], requires_grad=True)).tolist() == [1, 0]
    for bad in ([[1], [1, 2], 3], [None, 1, 2]):
        with pytest.raises(ConfigError, match="labels of list are no classes"):
            labels_of([1, 2, 3], labels=bad)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": "disjoint"}, r"partition is 'disjoint'; .*by_label\(\)"),
        ({"injection": {"alpha": 1.0, "beta": 1.0}}, "injection is {'alpha'"),
        ({"batch_size": 0, "plan": RoundPlan(epochs=1, fraction=1.0, clients=None)}, "at least 1"),
    ],
)
def test_the_loader_refuses_what_it_would_stumble_over_later(options, message):
    with pytest.raises(ConfigError, match=message):
        make_loader(range(9), **{"batch_size": 2, "membership": Membership(0, 3), "seed": 0, **options})


def test_yaml():
    config = load({"algorithm": "bsp", "data": {"partition": {"dirichlet": {"alpha": 0.3}}}})
    assert config.data.partition == dirichlet(alpha=0.3)
    injected = {"partition": "by_label", "injection": {"alpha": 0.5, "beta": 0.25}}
    assert load({"algorithm": "bsp", "data": injected}).data.injection == Injection(alpha=0.5, beta=0.25)
    for bad in (
        {"partition": "by_labels"},
        {"injection": {"alpha": 2.0, "beta": 0.5}},
        {"injection": 3},
        {"injection": {1: 2}},
    ):
        with pytest.raises(ConfigError):
            load({"algorithm": "bsp", "data": bad})


def test_too_few_samples_are_refused():
    with pytest.raises(ConfigError, match="too few"):
        disjoint().parts(2, None, 3, 0)
    with pytest.raises(ConfigError, match="too few"):
        samplers(by_label(), size=2)
