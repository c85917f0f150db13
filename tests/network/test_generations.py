"""Those who are left agree on who they are; who comes too late hears that it was given up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from relaxcomm.errors import CommunicationError
from relaxcomm.network.generations import Generations
from relaxcomm.network.meeting_place import MeetingPlace
from relaxcomm.network.transport import Membership

LIMIT = timedelta(seconds=5)


def generations(store, rank, patience_seconds, size=3):
    place = MeetingPlace(store, "run", Membership(rank, size), tuple(range(size)), LIMIT, LIMIT)
    return Generations(place, patience_seconds)


def test_a_rank_that_is_silent_is_given_up_and_hears_of_it():
    store = dist.HashStore()
    for rank in range(3):  # this process, which runs; as the transport of generation 0 tells
        dist.PrefixStore("run", store).set(f"process/{rank}", "")
    first, late, last = (generations(store, rank, 0.2) for rank in range(3))
    with ThreadPoolExecutor() as pool:
        places = list(pool.map(lambda one: one.follow(), (first, last)))
    assert [place.membership for place in places] == [Membership(0, 2), Membership(1, 2)]
    assert places[0].name == places[1].name != "run"
    assert first.current.workers == (0, 2)
    assert first.current.lost == {1: "did not come within 0.2 s"}
    with pytest.raises(CommunicationError, match=r"rank 1 was given up by the others.*did not come within"):
        late.follow()


def test_a_rank_that_has_left_is_not_waited_for():
    store = dist.HashStore()
    stays, leaves = (generations(store, rank, 60, size=2) for rank in range(2))
    leaves.leave("failed: KeyError: 'mine'")
    assert stays.follow().membership == Membership(0, 1)
    assert stays.current.lost == {1: "failed: KeyError: 'mine'"}
    again = stays.follow()  # alone
    assert again.name.endswith("/2")
