"""From one generation of ranks to the next, where that is broken off in the middle."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from relaxcomm.engine.membership import next_generation
from relaxcomm.engine.membership.reconfiguration import Reconfiguration
from relaxcomm.errors import RankLostError
from relaxcomm.network.generations import Generation
from relaxcomm.step.world import World as RanksNow
from tests.engine.harness import World, in_process, values


def gone_on(world: World):
    """The parameters after a change of ranks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with world.attach(model, optimizer, {"algorithm": "bsp", "bucket_bytes": 60}) as engine:
        model(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()
        elastic = SimpleNamespace(
            generation=Generation(0, tuple(range(world.size))),
            generations=None,
            next_world=lambda before, newest, left: RanksNow(world.group.transport(), before.statistics),
            give_up=lambda before: None,
            say=lambda step, in_order: None,
        )
        lost = RankLostError("rank 3 has ended")
        Reconfiguration(elastic, engine._session).go_on(lost, in_step=False, in_round=False)
        engine.close(average=False)
    return values(model)


def test_what_one_alone_has_taken_over_is_compared_anew(monkeypatch):
    """Who has sent it is lost before the others have it."""
    stay, broken_off = next_generation.stay, set()

    def broken_off_at_first(transition, *arguments):
        rank = transition.world.rank
        if rank in broken_off:
            return stay(transition, *arguments)
        broken_off.add(rank)
        if rank == 1:
            with torch.no_grad():
                for item in transition.before.bound.replica.parameters:
                    item.tensor.add_(1)
        raise RankLostError("rank 4 has ended")

    monkeypatch.setattr(next_generation, "stay", broken_off_at_first)
    first, *others = in_process(gone_on, 3)
    assert all(np.array_equal(first, other) for other in others)
