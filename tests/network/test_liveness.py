"""What a rank says of others when the store in which they tell it ends."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from relaxcomm.network import waiting
from relaxcomm.network.liveness import Peers
from relaxcomm.network.operations import Agree, Label
from relaxcomm.network.processes import this_process
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.network.status import Status
from relaxcomm.network.trail import Trail
from relaxcomm.network.transport import Membership

LIMIT, MINE = timedelta(seconds=10), Status("waits", "waits")


def ended_process():
    """Where a process was that has ended."""
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return f"{child} {this_process().partition(' ')[2]}"


@pytest.fixture
def held():
    """A store, as a list, and three ranks that use it; 0, which holds it, and 2 are other processes."""
    store = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    client = dist.TCPStore("127.0.0.1", store[0].port, is_master=False)
    everyone = [
        Peers(Rendezvous(client, "run", Membership(rank, 3), (0, 1, 2), LIMIT, LIMIT, None))
        for rank in range(3)
    ]
    everyone[1].meet([ended_process(), this_process(), ended_process()])
    yield store, everyone
    for one in everyone:
        one.close()


def test_what_was_read_before_the_store_ended_is_kept(held):
    store, everyone = held
    everyone[0].announce(Status("failed", "failed: RankLostError: rank 2 failed: ValueError: mine"))
    everyone[2].announce(Status("failed", "failed: ValueError: mine"))
    assert everyone[1].missing(MINE).words == "rank 2 failed: ValueError: mine"
    store.clear()
    assert everyone[1].missing(MINE).words == "rank 2 failed: ValueError: mine"


def test_nobody_has_ended_without_a_message_where_none_can_be_read(held):
    store, everyone = held
    assert "rank 2 has ended without a message" in everyone[1].missing(MINE).words
    everyone[2].announce(Status("failed", "failed: ValueError: mine"))
    store.clear()
    missing = everyone[1].missing(MINE)
    assert missing.lost
    assert missing.words.startswith("rank 0 has ended (process ")
    assert "; rank 2 has ended (process " in missing.words
    assert "the process that holds it has ended" in missing.words
    assert missing.words.endswith("what others said last cannot be read")


def test_what_a_rank_said_before_others_went_on_is_told_as_old_news(held):
    everyone = held[1]
    everyone[1].meet([this_process()] * 3)
    everyone[0].announce(Status("closed", "closed at step 2"))
    everyone[2].announce(Status("waits", "waits at all_reduce in step 3", events=1, operations=3))
    old = "rank 2 waits at all_reduce in step 3 (it said so earlier)"
    assert everyone[1].heard(Status("waits", "", 1, 900)) == f"rank 0 closed at step 2; {old}"
    for mine in (Status("waits", "", 1, 3), Status("asks", "", 0, 0)):
        assert "earlier" not in everyone[1].heard(mine)


def test_what_is_said_now_is_no_old_news_to_who_has_issued_more(held, monkeypatch):
    """As on a GPU, whose host goes on: where a connection breaks all may be at one operation."""
    monkeypatch.setattr(waiting, "_GRACE_SECONDS", 0.0)
    trail = Trail()
    for step in range(3):
        trail.add(Agree(torch.ones(1), "sum"), Label(step, "0"))
    [store], everyone = held
    client = dist.TCPStore("127.0.0.1", store.port, is_master=False)
    place = Rendezvous(client, "run", Membership(1, 3), (0, 1, 2), LIMIT, LIMIT, None)
    mine = waiting.Waiting(place, trail, seconds=10, limit="", elastic=False, is_watched=False)
    mine.peers.meet([this_process()] * 3)
    everyone[0].announce(Status("waits", "waits at step 1", operations=1))
    everyone[2].announce(Status("waits", "waits at step 1", operations=1))
    said = str(mine.broke("step 1", RuntimeError("unhandled cuda error")))
    assert "rank 0 waits at step 1; rank 2 waits at step 1" in said
    mine.peers.close()
