"""How often ranks ask the one store that all have: as often among many as among few."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # noqa: F401  # which torch knows only then

from relaxcomm.network.generations import Generations
from relaxcomm.network.liveness import Peers
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.network.seal import agree
from relaxcomm.network.secret import Secret
from relaxcomm.network.signed_store import SignedStore
from relaxcomm.network.status import Status
from relaxcomm.network.transport import Membership
from tests.network.counting_store import CountingStore

LIMIT = timedelta(seconds=30)
FEW, MANY = 3, 48


def rendezvous_of(store, rank, size, secret=None):
    return Rendezvous(store, "run", Membership(rank, size), tuple(range(size)), LIMIT, LIMIT, secret)


@pytest.mark.parametrize("secret", [None, Secret(b"a" * 32)], ids=["open", "secret"])
def test_a_rank_meets_many_as_it_meets_few(secret):
    """Rank 0 tells the others; only what it writes grows with their number."""
    asked = {}
    for size in (FEW, MANY):
        shared = dist.HashStore()
        stores = [CountingStore(shared) for _ in range(size)]

        def one(rank, stores=stores, size=size):
            kept = stores[rank] if secret is None else SignedStore(stores[rank], secret)
            return agree(rendezvous_of(kept, rank, size, secret))

        with ThreadPoolExecutor(size) as pool:
            assert len({seal.session for seal in pool.map(one, range(size))}) == 1
        asked[size] = [store.asked for store in stores]
    assert max(len(shared.get(key)) for key in shared.list_keys()) < 250  # no lists of ranks
    assert {tuple(sorted(one.items())) for one in asked[FEW][1:] + asked[MANY][1:]} == {
        (("get", 1), ("set", 1), ("wait", 1))
    }
    first, of_many = asked[FEW][0], asked[MANY][0]
    assert of_many - first == {"set": MANY - FEW}


def test_who_waits_reads_all_statuses_at_once():
    asked = {}
    for size in (FEW, MANY):
        shared = dist.HashStore()
        everyone = [Peers(rendezvous_of(shared, rank, size)) for rank in range(1, size)]
        store = CountingStore(shared)
        mine = Peers(rendezvous_of(store, 0, size))
        before = store.asked.copy()
        assert not mine.missing(Status("waits", "waits"))
        everyone[-1].announce(Status("failed", "failed: mine"))
        assert mine.missing(Status("waits", "waits")).words == f"rank {size - 1} failed: mine"
        asked[size] = store.asked - before
        for one in (mine, *everyone):
            one.close()
    assert asked[FEW] == asked[MANY] == {"check": 2, "multi_get": 2}


def test_statuses_are_read_one_by_one_while_some_ranks_are_on_their_way():
    shared = dist.HashStore()
    first, second = (Peers(rendezvous_of(shared, rank, 3)) for rank in range(2))
    second.announce(Status("failed", "failed: mine"))
    assert first.missing(Status("meets", "meets")).words == "rank 1 failed: mine"
    for one in (first, second):
        one.close()


def test_who_is_not_ready_is_found_by_halves():
    """Of 48 all but two are ready: some looks at halves, and not one at each of them."""
    shared = dist.HashStore()
    kept = dist.PrefixStore("run", shared)
    for worker in range(1, MANY):
        if worker not in (7, 30):
            kept.set(f"1/ready/{worker}", "")
    for lost in (7, 30):
        kept.set(f"left/{lost}", "was ended")
    store = CountingStore(shared)
    one = Generations(rendezvous_of(store, 0, MANY), MANY, 60)
    assert one.follow().membership == Membership(0, MANY - 2)
    assert one.current.lost == {7: "was ended", 30: "was ended"}
    assert store.asked["check"] < MANY
    one.leave("closed")


def test_the_rendezvous_of_many_has_as_short_a_name():
    """It is a part of all keys, each of which every rank asks for."""
    names = {}
    for size in (8, 512):
        dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=size)
        try:
            names[size] = Rendezvous.of(None, 60.0).name
        finally:
            dist.destroy_process_group()
    assert names[8] != names[512]
    assert abs(len(names[8]) - len(names[512])) <= 2  # of a counter
