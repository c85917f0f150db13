"""Optimizer states of clients follow those who play them."""

from __future__ import annotations

import torch

import relaxcomm
from relaxcomm.engine.membership.client_states import share_out
from relaxcomm.monitoring.statistics import Statistics
from relaxcomm.plugin import RoundPlan
from relaxcomm.replica.replica import Replica
from relaxcomm.step.world import World


def played(group: relaxcomm.InProcessGroup, clients: int | None, before: list[int]) -> dict[int, float]:
    """What each rank has of clients that were played by `client % 3`, and where it has been itself."""
    model = torch.nn.Linear(2, 1)
    replica = Replica(model, [torch.optim.SGD(model.parameters(), momentum=0.5)], None, 100)
    rank_before = before[group.rank()]
    for client in range(clients or 3):
        if client % 3 == rank_before or rank_before < 0:  # a rank that comes back has old ones
            mark = float(client) if rank_before >= 0 else -1.0
            replica.clients.restore({client: {"weight": {"momentum_buffer": torch.full((1, 2), mark)}}})
    transport = group.transport()
    world = World(transport, Statistics(transport.counters))
    share_out(RoundPlan(1, 1.0, clients), replica, world, rank_before=rank_before)
    return {
        client: float(states["weight"]["momentum_buffer"][0, 0])
        for client, states in replica.clients.export().items()
    }


def test_those_of_ranks_that_stay_are_kept():
    left = relaxcomm.simulate(lambda group: played(group, 6, [0, 2]), 2)
    assert left == [{0: 0.0, 2: 2.0}, {3: 3.0, 5: 5.0}]


def test_one_that_joins_gets_those_that_it_plays():
    after = relaxcomm.simulate(lambda group: played(group, 6, [0, 1, 2, -1]), 4)
    assert after == [{0: 0.0, 4: 4.0}, {1: 1.0, 5: 5.0}, {2: 2.0}, {3: 3.0}]


def test_a_worker_that_is_a_client_keeps_its_own():
    left = relaxcomm.simulate(lambda group: played(group, None, [0, 2, -1]), 3)
    assert left == [{0: 0.0}, {1: 2.0}, {}]
