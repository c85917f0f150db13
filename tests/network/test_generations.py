"""Those who are left agree on who they are; who comes too late hears that it was given up."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
import torch.distributed as dist

from relaxcomm import network
from relaxcomm.errors import CommunicationError, ConfigError
from relaxcomm.network import lifelines
from relaxcomm.network.generations import Generations
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.network.transport import Membership

LIMIT = timedelta(seconds=5)


def generations(store, rank, patience_seconds, size=3):
    rendezvous = Rendezvous(store, "run", Membership(rank, size), tuple(range(size)), LIMIT, LIMIT)
    return Generations(rendezvous, size, patience_seconds)


def test_a_rank_that_is_silent_is_given_up_and_hears_of_it():
    store = dist.HashStore()
    for rank in range(3):  # this process, which runs; as the transport of generation 0 tells
        dist.PrefixStore("run", store).set(f"process/{rank}", "")
    first, late, last = (generations(store, rank, 0.2) for rank in range(3))
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda one: one.follow(), (first, last)))
    assert [one.membership for one in found] == [Membership(0, 2), Membership(1, 2)]
    assert found[0].name == found[1].name != "run"
    assert first.current.workers == (0, 2)
    assert first.current.lost == {1: "did not come within 0.2 s"}
    with pytest.raises(CommunicationError, match=r"worker 1 was given up by the others.*did not come within"):
        late.follow()


def test_a_rank_that_has_left_is_not_waited_for():
    store = dist.HashStore()
    stays, leaves = (generations(store, rank, 60, size=2) for rank in range(2))
    leaves.leave("failed: KeyError: 'mine'")
    assert stays.follow().membership == Membership(0, 1)
    assert stays.current.lost == {1: "failed: KeyError: 'mine'"}
    again = stays.follow()  # alone
    assert again.name.endswith("/2")


def newcomer(store, size=2):
    rendezvous = Rendezvous(store, "run", Membership(-1, size), tuple(range(size)), LIMIT, LIMIT)
    return Generations(rendezvous, size, 60)


def test_newcomers_are_admitted_when_all_others_have_come():
    store = dist.HashStore()
    ranks, late, joining = [generations(store, rank, 60, size=2) for rank in range(2)], newcomer(store), []
    assert ranks[0].newest() == -1
    late.ask()
    assert ranks[0].newest() == 2
    with ThreadPoolExecutor() as pool:
        joining.append(pool.submit(late.wait_for_admission, 60))
        found = list(pool.map(lambda one: one.follow(newest=2), ranks))
    assert [one.membership for one in found] == [Membership(0, 3), Membership(1, 3)]
    assert joining[0].result().membership == Membership(2, 3)
    assert joining[0].result().name == found[0].name
    assert ranks[0].current == late.current
    assert ranks[0].current.joined == (2,)


def test_numbers_are_never_used_twice():
    store = dist.HashStore()
    stays, gone, next_one = generations(store, 0, 60, size=1), newcomer(store, 1), newcomer(store, 1)
    gone.ask()
    gone.leave("failed")
    assert stays.follow(newest=1).membership == Membership(0, 1)
    next_one.ask()
    assert stays.newest() == 2
    assert stays.follow(newest=2).membership == Membership(0, 2)
    assert next_one.wait_for_admission(60).membership == Membership(1, 2)
    assert stays.current.workers == (0, 2)


def test_who_asks_again_is_another_and_nobody_waits_for_what_it_was():
    store = dist.HashStore()
    stays, joins = generations(store, 0, 60, size=1), newcomer(store, 1)
    joins.ask()
    stays.follow(newest=1)
    joins.wait_for_admission(60)
    joins.ask()
    assert stays.follow().membership == Membership(0, 1)
    assert stays.current.lost == {1: "asks to join again"}
    assert stays.follow(newest=stays.newest()).membership == Membership(0, 2)
    assert joins.wait_for_admission(60).membership == Membership(1, 2)


def test_who_is_not_admitted_hears_why():
    store = dist.HashStore()
    ranks, refused, late = generations(store, 0, 60, size=1), newcomer(store, 1), newcomer(store, 1)
    refused.ask()
    ranks.refuse(1, "a hypercube has 2, 4 or 8 workers", says=True)
    with pytest.raises(ConfigError, match="does not admit this worker: a hypercube"):
        refused.wait_for_admission(60)
    late.ask()
    with pytest.raises(CommunicationError, match=r"not admitted within 0 s \(timeout_seconds\)"):
        late.wait_for_admission(0)
    assert ranks.newest() == -1, "who has given up is not waited for"
    ranks.leave("closed at step 12")
    with pytest.raises(CommunicationError, match="has ended before"):
        late.wait_for_admission(60)


def test_where_the_store_has_ended_so_may_the_run():
    holds = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    reads = dist.TCPStore("127.0.0.1", holds.port, None, False, wait_for_workers=False)
    stays = generations(reads, 1, 60)
    stays.newest()
    del holds
    assert stays.newest() == -1, "training needs no store; whoever may have been lost is asked for there"
    with pytest.raises(CommunicationError, match=r"worker 1 cannot go on: .* ended, or cannot be reached"):
        stays.follow()


@pytest.mark.parametrize(
    ("broken", "at_fault"),
    [
        ({(0, 3), (1, 3), (2, 3)}, 3),
        ({(0, 1), (0, 2), (0, 3)}, 0),  # which the three others do not reach, either
        ({(0, 2)}, 2),  # one of the two is enough
        (set(), None),
    ],
)
def test_of_those_who_do_not_reach_each_other_one_is_at_fault(monkeypatch, broken, at_fault):
    """Whoever saw it first ended, which may be one that reaches all others but the one that is cut off."""
    store, asks = dist.HashStore(), [0]
    ranks = [generations(store, rank, 60, size=4) for rank in range(4)]
    monkeypatch.setattr(lifelines, "answers", lambda other: (*sorted((*asks, int(other))),) not in broken)
    for rank, one in enumerate(ranks):
        one._store.set(f"process/{rank}", f"1 host {rank}")
    for asks[0], one in enumerate(ranks):
        one.tell_reached()
        one.current = replace(one.current, number=1)
    assert [one._worker for one in ranks if one.reaches_fewest()] == [at_fault] * (at_fault is not None)


def test_goodbye_does_not_wait_for_a_store_out_of_reach_as_long_as_training_would(monkeypatch):
    monkeypatch.setattr(network.generations, "_GOODBYE_SECONDS", 0.1)
    leaves, answers = generations(dist.HashStore(), 0, 60), threading.Event()
    with pytest.raises(TimeoutError):
        leaves._store._thread.ask(lambda store: answers.wait(), 0)
    begun = time.monotonic()
    leaves.leave("failed")
    assert time.monotonic() - begun < 30
    answers.set()


def test_training_waits_for_no_store_that_does_not_answer():
    """Each look for newcomers would take all the patience that there is."""
    store, answers = dist.HashStore(), threading.Event()
    trains, late = generations(store, 0, 60, size=1), newcomer(store, 1)
    late.ask()
    with pytest.raises(TimeoutError):
        trains._store._thread.ask(lambda store: answers.wait(), 0)
    begun = time.monotonic()
    assert trains.newest() == -1
    assert time.monotonic() - begun < 30
    answers.set()
    while (found := trains.newest()) == -1:
        pass
    assert found == 1
