"""The groups of one rank, and those who are waited for while one is made."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from relaxcomm.errors import RankLostError
from relaxcomm.network.operations import Neighbors
from relaxcomm.network.process_groups import Groups
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.network.transport import Membership

LIMIT = timedelta(seconds=60)


def test_who_is_lost_before_the_first_exchange_with_neighbors_is_noticed():
    """Not when the time is over in which the group for it could be made, which is that of a beginning."""
    store = dist.HashStore()

    def groups(rank: int) -> Groups:
        place = Rendezvous(store.clone(), "run", Membership(rank, 2), (0, 1), LIMIT, timedelta(seconds=5))
        return Groups(place, backend="gloo", device=torch.device("cpu"), elastic=True)

    def wait(work):
        with pytest.raises(RuntimeError, match="not complete"):
            work.wait(timedelta(seconds=0.1))
        raise RankLostError("rank 1 has ended")

    with ThreadPoolExecutor() as both:
        first, _ = both.map(groups, range(2))
    tensor = torch.zeros(1)
    with pytest.raises(RankLostError, match="rank 1 has ended"):
        first.start(Neighbors({1: tensor}, {1: tensor.clone()}), wait)
