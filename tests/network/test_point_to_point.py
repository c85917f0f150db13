"""Gloo's sends and receives are waited for by one thread, whoever asks for them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from relaxcomm.network.point_to_point import ThreadedWork

LIMIT = timedelta(seconds=9)


class Receive:
    def __init__(self):
        self.waits, self.came = [], threading.Event()

    def wait(self, limit):
        self.waits.append(limit)
        self.came.wait(10)


class OnGloo(Receive):
    """A wait that runs out closes the connection, which ends the others."""

    def wait(self, limit):
        if self.waits:
            self.came.set()
        super().wait(limit)
        raise RuntimeError("closed")


def test_a_slice_that_runs_out_leaves_the_wait_until_all_have_come():
    receives = Receive(), Receive()
    work = ThreadedWork(receives, LIMIT)
    with pytest.raises(RuntimeError, match=r"not complete within 0.01 s"):
        work.wait(timedelta(milliseconds=10))
    receives[0].came.set()
    assert work.is_completed() is False
    receives[1].came.set()
    work.wait(LIMIT)
    assert work.is_completed()
    work.abandon()
    assert [one.waits for one in receives] == [[LIMIT]] * 2


def test_what_is_given_up_has_ended():
    receives = OnGloo(), OnGloo()
    ThreadedWork(receives, LIMIT).abandon()
    assert not receives[0].waits, "nobody has begun to wait"
    work = ThreadedWork(receives, LIMIT)
    with pytest.raises(RuntimeError, match="not complete"):
        work.wait(timedelta(milliseconds=10))
    work.abandon()
    assert work.is_completed()
    with pytest.raises(RuntimeError, match="closed"):
        work.wait(LIMIT)


def test_several_that_look_at_once_are_one_wait():
    num_looks = 8
    for _ in range(20):
        receive, begin = Receive(), threading.Barrier(num_looks)
        work = ThreadedWork([receive], LIMIT)

        def look(work=work, begin=begin):
            begin.wait(10)
            return work.is_completed()

        with ThreadPoolExecutor(num_looks) as pool:
            looks = [pool.submit(look) for _ in range(num_looks)]
            assert not any(one.result(10) for one in looks)
        receive.came.set()
        work.wait(LIMIT)
        assert receive.waits == [LIMIT]
