"""A store that signs: its values count only under their own key, and only from those with the secret."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from relaxcomm.errors import ConfigError, ForgeryError
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.network.seal import agree
from relaxcomm.network.secret import Secret
from relaxcomm.network.signed_store import SignedStore, signed
from relaxcomm.network.transport import Membership

SECRET, OTHER = Secret(b"a" * 32), Secret(b"b" * 32)
LIMIT = timedelta(seconds=20)


def test_what_one_writes_another_with_the_secret_reads():
    plain = dist.HashStore()
    one, other = SignedStore(plain, SECRET), SignedStore(plain, SECRET)
    dist.PrefixStore("run", one).set("key", "value")
    assert dist.PrefixStore("run", other).get("key") == b"value"
    assert plain.get("run/key") != b"value"


@pytest.mark.parametrize("forged", [b"", b"value", b"value" + b"x" * 32])
def test_what_others_write_is_refused(forged):
    plain = dist.HashStore()
    whole = SignedStore(plain, SECRET)
    store = dist.PrefixStore("run", whole)
    plain.set("run/key", forged)
    with pytest.raises(ForgeryError, match=r"under 'run/key' was not written with membership\.secret"):
        store.get("key")
    if forged:  # an empty value is as good as none
        with pytest.raises(ForgeryError):
            store.compare_set("key", "", "mine")


def test_a_value_cannot_be_moved_or_read_with_another_secret():
    plain = dist.HashStore()
    store = SignedStore(plain, SECRET)
    store.set("status/1", "closed")
    plain.set("status/2", plain.get("status/1"))
    with pytest.raises(ForgeryError, match="status/2"):
        store.get("status/2")
    with pytest.raises(ForgeryError, match="status/1"):
        SignedStore(plain, OTHER).get("status/1")


def test_compare_set_and_add():
    whole = SignedStore(dist.HashStore(), SECRET)
    store = dist.PrefixStore("run", whole)
    assert store.compare_set("who", "", "me") == b"me"
    assert store.compare_set("who", "", "you") == b"me"
    assert store.compare_set("who", "me", "you") == b"you"
    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(lambda _: store.add("count", 1), range(40))) == list(range(1, 41))
    assert store.add("count", 0) == 40


def test_a_clone_of_a_prefixed_store_signs():
    plain = dist.TCPStore("127.0.0.1", 0, 1, True, timeout=LIMIT)
    whole = SignedStore(plain, SECRET)
    clone = dist.PrefixStore("run", whole).clone()
    clone.set("key", "value")
    other = SignedStore(plain, SECRET)
    assert dist.PrefixStore("run", other).get("key") == b"value"


def test_nothing_is_signed_twice():
    whole = SignedStore(dist.HashStore(), SECRET)
    store = dist.PrefixStore("run", whole)
    assert signed(store, SECRET) is store
    assert signed(store, None) is store


def test_a_secret_shows_itself_nowhere():
    for shown in (repr(SECRET), str(SECRET), f"{SECRET}"):
        assert "aaa" not in shown
    with pytest.raises(TypeError, match="not written anywhere"):
        pickle.dumps(SECRET)


def agreed(*known):
    """What each rank comes to, or its error, each with the secret that it has."""
    plain = dist.HashStore()

    def rank(number):
        mine = known[number]
        store = signed(plain, mine)
        try:
            return agree(Rendezvous(store, "run", Membership(number, len(known)), (), LIMIT, LIMIT, mine))
        except (ConfigError, ForgeryError) as error:
            return error

    with ThreadPoolExecutor(len(known)) as pool:
        return list(pool.map(rank, range(len(known))))


def test_ranks_with_the_same_secret_agree_on_a_session_of_their_own():
    first, second = agreed(SECRET, SECRET), agreed(SECRET, SECRET)
    assert first[0].session == first[1].session != second[0].session
    tag = first[0].tag("objects", b"payload")
    assert first[1].check(tag, "objects", b"payload")
    for seal, purpose, payload in (
        (second[1], "objects", b"payload"),  # of another session
        (first[1], "service 0", b"payload"),
        (first[1], "objects", b"payloae"),
    ):
        assert not seal.check(tag, purpose, payload)


def test_without_a_secret_nothing_is_signed():
    one, _ = agreed(None, None)
    assert one.tag("objects", b"payload") == b""
    assert one.check(b"", "objects", b"anything")


def test_a_rank_without_a_secret_is_an_error_on_all():
    for error in agreed(SECRET, None, SECRET):
        assert isinstance(error, ConfigError)
        assert "ranks [1] have no membership.secret" in str(error)


def test_a_rank_with_another_secret_is_an_error_on_all():
    for rank, error in enumerate(agreed(SECRET, SECRET, OTHER)):
        assert isinstance(error, ForgeryError)
        assert f"rank {rank} and ranks {[0, 1] if rank == 2 else [2]} have different" in str(error)
