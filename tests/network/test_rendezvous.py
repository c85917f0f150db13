"""Where ranks meet is counted in the store: new processes find it, and those that come late."""

from __future__ import annotations

from datetime import timedelta

import psutil
import pytest
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # noqa: F401  # which torch knows only then

from relaxcomm.errors import CommunicationError, ConfigError, ForgeryError
from relaxcomm.network import default_group, rendezvous
from relaxcomm.network.rendezvous import Rendezvous, next_name
from relaxcomm.network.secret import Secret
from relaxcomm.network.signed_store import UNSIGNED, SignedStore, signed
from relaxcomm.network.store_thread import StoreThread
from relaxcomm.network.transport import Membership

DAYS = timedelta(days=60)
STORES = {
    "hash": lambda folder: dist.HashStore(),
    "file": lambda folder: dist.FileStore(str(folder / "store"), 3),
    "prefix": lambda folder: dist.PrefixStore("some", dist.HashStore()),
    "signed": lambda folder: SignedStore(dist.HashStore(), Secret(b"a" * 32)),
}


@pytest.mark.parametrize("make", STORES.values(), ids=STORES)
def test_in_whatever_order_they_come_each_rendezvous_is_new(make, tmp_path):
    store = make(tmp_path)
    for number, order in enumerate([(0, 1, 2), (2, 0, 1), (1, 0, 2)]):
        assert {next_name(store, "run", rank) for rank in order} == {f"run/{number}"}


def test_who_comes_late_goes_where_another_one_tries_again():
    store = dist.HashStore()
    assert [next_name(store, "run", 0) for _ in range(3)] == ["run/0", "run/1", "run/2"]
    assert next_name(store, "run", 1) == "run/2"
    assert next_name(store, "run", 1) == "run/3", "it gives up in turn"
    assert next_name(store, "run", 0) == "run/3"


def test_whoever_comes_first_names_the_place():
    """Nobody waits for rank 0. Who has another secret, or none, is found out there."""
    store, names = dist.HashStore(), []
    store.set_timeout(timedelta(seconds=1))
    for rank, secret in ((1, None), (2, Secret(b"a" * 32)), (0, Secret(b"b" * 32))):
        dist.init_process_group("fake", store=store, rank=rank, world_size=3)
        try:
            names.append(Rendezvous.of(None, 60.0, secret).name)
        finally:
            dist.destroy_process_group()
    assert len(set(names)) == 1


def test_who_has_no_secret_and_names_the_place_first_cannot_have_it_unsigned_or_used_again():
    names = []
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=1)
    try:
        open_store = dist.distributed_c10d._get_default_store()
        for number in range(2):
            open_store.set(f"relaxcomm/0/{rendezvous._digest((0,))}/{number}/{UNSIGNED}name", UNSIGNED)
            place = Rendezvous.of(None, 60.0, Secret(b"a" * 32))
            place.store.underlying_store.set(f"{place.name}/key", "forged")
            with pytest.raises(ForgeryError):
                place.store.get(f"{place.name}/key")
            names.append(place.name)
    finally:
        dist.destroy_process_group()
    assert names[0] != names[1]


def test_a_default_group_that_was_given_up_is_made_with_who_comes_late(monkeypatch):
    names = {0: [], 1: []}

    def agree(rendezvous):
        names[rendezvous.membership.rank].append(rendezvous.name)
        raise ConfigError("nobody else is here")

    store = dist.HashStore()
    monkeypatch.setattr(default_group, "agree", agree)
    monkeypatch.setattr(default_group, "check_rendezvous", lambda: None)
    monkeypatch.setattr(default_group, "use_interface_of", lambda address: None)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    for rank in (0, 0, 1):
        monkeypatch.setattr(default_group, "_met", [(store, rank, 2)])
        with pytest.raises(ConfigError):
            default_group.make_default_group(1.0)
    assert names[0] == ["relaxcomm/0/0", "relaxcomm/0/1"]
    assert names[1] == names[0][1:]


def test_whoever_gives_up_names_those_who_have_not_come(monkeypatch):
    monkeypatch.setattr(default_group, "check_rendezvous", lambda: None)
    monkeypatch.setattr(default_group, "use_interface_of", lambda address: None)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    store, said = dist.HashStore(), []
    for rank in (3, 0, 1, 2):  # each has given up when the next one comes
        monkeypatch.setattr(default_group, "_met", [(store, rank, 4)])
        with pytest.raises(CommunicationError) as caught:
            default_group.make_default_group(0.2)
        said.append(str(caught.value).partition("(timeout_seconds): ")[2])
    together = "; every rank must call attach(), and not much later than the others"
    assert said == [
        f"ranks 0, 1, 2 did not come{together}",
        f"ranks 1, 2 did not come{together}",
        f"rank 2 did not come{together}",
        f"rank 0 had given up before the last one came{together}",
    ]


def test_who_comes_and_cannot_be_connected_to_is_waited_for_no_longer_than_the_limit(monkeypatch):
    """Gloo waits five times as long where the other side is to open the connection."""
    made = []
    monkeypatch.setattr(rendezvous, "ProcessGroupGloo", lambda *place: made.append(place) or dist.HashStore())
    monkeypatch.setattr(rendezvous, "set_limit", lambda group, limit: None)
    store = dist.HashStore()
    places = [
        Rendezvous(store, "run", Membership(rank, 2), (0, 1), DAYS, timedelta(seconds=1)) for rank in range(2)
    ]
    with pytest.raises(RuntimeError, match=r"[Tt]imeout"):
        places[0].gloo("host")
    places[1].gloo("host")
    assert made[0][1:] == (1, 2, timedelta(seconds=0.2))


@pytest.mark.parametrize("secret", [None, Secret(b"a" * 32)], ids=["open", "secret"])
def test_each_generation_lets_go_of_the_connections_of_the_one_before(secret):
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    first = Rendezvous(signed(store, secret), "run", Membership(0, 1), (0,), DAYS, DAYS, secret)

    def connections():
        return len([one for one in psutil.Process().net_connections() if one.raddr[1:] == (store.port,)])

    counts = []
    for number in range(1, 4):
        place = first.of_generation(number, 0, (0,), DAYS)
        asking = StoreThread(dist.PrefixStore(place.name, place.store))
        asking.ask(lambda one: one.set("key", "value"), 20)
        asking.close()
        del asking, place
        counts.append(connections())
    assert counts == counts[:1] * 3
