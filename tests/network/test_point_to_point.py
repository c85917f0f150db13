"""Gloo's sends and receives are waited for by one thread, whoever asks for them."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from relaxcomm.network import point_to_point
from relaxcomm.network.point_to_point import ThreadedWork

LIMIT = timedelta(seconds=9)


class Receive:
    def __init__(self):
        self.waits, self.came = [], threading.Event()

    def wait(self, limit):
        self.waits.append(limit)
        self.came.wait(limit.total_seconds())


class OnGloo(Receive):
    """A wait that runs out closes the connection, which soon ends the one before it."""

    def wait(self, limit):
        is_first = not self.waits
        if not is_first:
            self.came.set()
        super().wait(limit)
        time.sleep(0.05 * is_first)
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


def test_what_nobody_waits_for_is_given_up_without_a_wait():
    receive = OnGloo()
    ThreadedWork([receive], LIMIT).abandon()
    assert not receive.waits


@pytest.mark.parametrize("give_up", [ThreadedWork.abandon, lambda work: point_to_point._waiting.end()])
def test_what_is_given_up_has_ended_and_so_have_all_at_exit(give_up):
    work = ThreadedWork([OnGloo()], LIMIT)
    with pytest.raises(RuntimeError, match="not complete"):
        work.wait(timedelta(milliseconds=10))
    give_up(work)
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
