"""A store that is out of reach holds nobody up."""

from __future__ import annotations

import threading
import time

import pytest

from relaxcomm.network.store_thread import BoundedStore, StoreThread


class Silent:
    """A store that does not answer before it is told to."""

    def __init__(self):
        self.may_answer = threading.Event()

    def clone(self):
        return self

    def add(self, key, number):
        return number

    def check(self, keys):
        self.may_answer.wait()
        return True


def test_a_store_that_does_not_answer_is_given_up_in_time():
    store = Silent()
    bounded, begin = BoundedStore(store, 0.2), time.monotonic()
    assert bounded.add("a", 3) == 3
    with pytest.raises(RuntimeError, match=r"the store has not answered for 0\.2 s"):
        bounded.check(["a"])
    assert time.monotonic() - begin < 5
    store.may_answer.set()
    assert bounded.check(["a"])


def test_what_the_store_raises_comes_through():
    with pytest.raises(AttributeError, match="get"):
        BoundedStore(Silent(), 5).get("a")


def test_a_wait_of_the_store_s_own_that_runs_out_comes_through():
    def ask(store):
        raise TimeoutError("waited 3 s for key x")

    asking = StoreThread(Silent())
    with pytest.raises(TimeoutError, match="waited 3 s for key x"):
        asking.ask(ask, 5)
    asking.close()


class Slow(Silent):
    """A store that is slow to connect to."""

    def __init__(self):
        super().__init__()
        self.may_connect, self.is_connected = threading.Event(), threading.Event()

    def clone(self):
        self.may_connect.wait()
        self.is_connected.set()
        return self


def test_it_connects_before_it_is_asked():
    store = Slow()
    bounded = BoundedStore(store, 0.2)
    store.may_connect.set()
    assert store.is_connected.wait(10)
    assert bounded.add("a", 3) == 3


def test_its_thread_ends_with_it():
    store = Silent()
    before = set(threading.enumerate())  # those of other tests may be about to end
    bounded = BoundedStore(store, 5)
    (mine,) = set(threading.enumerate()) - before
    del bounded
    mine.join(10)
    assert not mine.is_alive()
