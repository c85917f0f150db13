"""What all ranks have alike, and what one sends when some have applied what others have not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from relaxcomm.engine import survival
from tests.engine.harness import World, in_process


def after_a_forward(world: World, algorithm, *, parted: bool):
    """What ranks say that they have alike, and then the model that each has from rank 1."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(world.rank)
    with world.attach(model, optimizer, {"algorithm": algorithm, "bucket_bytes": 60}) as engine:
        for _ in range(2):
            model(torch.randn(8, 3, generator=draw)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        model(torch.randn(8, 3, generator=draw))  # of a step in which a rank is lost
        if parted and world.rank == 1:
            with torch.no_grad():
                model[0].weight += 1.0
        bound = engine._session.bound
        alike = survival.shared_digest(bound)
        survival.send_shared(bound, 1)
        engine.close(average=False)
    return alike, model[0].weight.flatten().tolist(), model[1].running_mean.tolist()


def unparted(world: World, algorithm):
    return after_a_forward(world, algorithm, parted=False)[0]


@pytest.mark.parametrize("algorithm", ["bsp", "bytegrad", "signsgd"])
def test_statistics_of_a_forward_make_no_difference(algorithm):
    assert len(set(in_process(unparted, 3, algorithm))) == 1


def parted(world: World):
    return after_a_forward(world, "bsp", parted=True)


def test_one_sends_its_parameters_and_each_rank_keeps_its_statistics():
    alike, weights, statistics = zip(*in_process(parted, 3), strict=True)
    assert len(set(alike)) == 2
    assert weights[0] == weights[1] == weights[2]
    assert len(set(map(tuple, statistics))) == 3
