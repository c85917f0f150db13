"""The groups of one rank, and those who are waited for while one is made."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from relaxcomm.errors import ConfigError, RankLostError
from relaxcomm.network.communicators import Wait, new_group
from relaxcomm.network.operations import Neighbors
from relaxcomm.network.process_groups import Groups, chosen_backend
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.network.transport import Membership

LIMIT = timedelta(seconds=60)


@pytest.fixture
def both():
    """Those of two ranks, and a pool for what they do at once."""
    store = dist.HashStore()

    def groups(rank: int) -> Groups:
        place = Rendezvous(store.clone(), "run", Membership(rank, 2), (0, 1), LIMIT, timedelta(seconds=2))
        return Groups(place, backend="gloo", device=torch.device("cpu"), elastic=True)

    with ThreadPoolExecutor() as pool:
        yield [*pool.map(groups, range(2))], pool


def exchange(groups: Groups, other: int, wait: Wait) -> torch.Tensor:
    """What another rank has sent."""
    received = torch.zeros(1)
    (work,), _ = groups.start(Neighbors({other: torch.full((1,), 1.0 - other)}, {other: received}), wait)
    work.wait(LIMIT)
    return received


def test_who_is_lost_before_the_first_exchange_with_neighbors_is_noticed(both):
    """Not when the time is over in which the group for it could be made, which is that of a beginning."""

    def wait(work):
        with pytest.raises(RuntimeError, match="not complete"):
            work.wait(timedelta(seconds=0.1))
        raise RankLostError("rank 1 has ended")

    (first, _), _ = both
    with pytest.raises(RankLostError, match="rank 1 has ended"):
        exchange(first, 1, wait)


def test_who_comes_late_to_the_first_exchange_with_neighbors_is_waited_for(both):
    """A step may take longer than groups are waited for by those who have just said that they are here."""

    def come(rank):
        time.sleep(2.5 * rank)
        return exchange(groups[rank], 1 - rank, lambda work: work.wait(LIMIT)).item()

    groups, pool = both
    assert [*pool.map(come, range(2))] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("setting", "device", "backend"),
    [("auto", "cpu", "gloo"), ("auto", "cuda", "nccl"), ("gloo", "cuda", "gloo"), ("nccl", "cuda", "nccl")],
)
def test_a_backend_is_chosen_by_where_the_model_is(setting, device, backend):
    assert chosen_backend(setting, torch.device(device)) == backend


def test_nccl_without_a_gpu_or_in_a_torch_without_it_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match="needs a model on a GPU, got cpu; use gloo or auto"):
        chosen_backend("nccl", torch.device("cpu"))
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(ConfigError, match="not a part of this PyTorch; install a build that has it"):
        new_group(None, "values")
