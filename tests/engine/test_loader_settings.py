"""Whom `engine.loader` deals the samples to: as configured, unless the call says otherwise."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import relaxcomm
from relaxcomm.data import Injection, by_label, disjoint
from tests.engine.harness import World
from tests.models import take_step

CLASSES = torch.arange(33) % 3
DATA = TensorDataset(torch.arange(33), CLASSES)


def loaded(group, data, options):
    """Number of batches and the samples of an epoch, which a real training step has consumed."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"algorithm": "bsp", "data": data, "seed": 3}
    world = World(group.rank(), group.size(), group)
    with world.attach(model, optimizer, config) as engine:
        batches = []
        for indices, _ in engine.loader(DATA, batch_size=4, **options):
            take_step(model(indices[:, None].float()).mean(), optimizer)
            batches.append(indices.tolist())
        return batches, engine.statistics["samples"]


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ({"partition": "by_label"}, {}),
        ({"partition": "disjoint"}, {"partition": by_label()}),
        ({"partition": "disjoint"}, {"partition": by_label(), "labels": CLASSES.tolist()}),
    ],
)
def test_the_partition_of_the_call_or_else_of_the_configuration(data, options):
    ranks = relaxcomm.simulate(lambda group: loaded(group, data, options), 3)
    for rank, (batches, samples) in enumerate(ranks):
        assert sorted(chain(*batches)) == [i for i in range(33) if i % 3 == rank]
        assert [len(batch) for batch in batches] == [4, 4, 3]
        assert samples == 11


def test_injection_is_configured():
    injected = {"partition": "by_label", "injection": {"alpha": 1.0, "beta": 1.0}}
    ranks = relaxcomm.simulate(lambda group: loaded(group, injected, {}), 3)
    for batches, samples in ranks:  # b' = 4 / (1 + 3) = 1 of its own and one from each other worker
        assert [len(batch) for batch in batches] == [3] * 11
        assert all({i % 3 for i in batch} == {0, 1, 2} for batch in batches)
        assert samples == 33
    other = {"partition": disjoint(), "injection": Injection(alpha=0.34, beta=1.0)}
    (batches, _), *_ = relaxcomm.simulate(lambda group: loaded(group, injected, other), 3)
    assert any(len(batch) != 3 for batch in batches)
