"""Gloo's sends and receives are waited for by one thread, whoever asks for them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from relaxcomm.network.point_to_point import ThreadedWork


class Receive:
    def __init__(self):
        self.waits, self.came = [], threading.Event()

    def wait(self, limit):
        self.waits.append(limit)
        self.came.wait(10)


def test_several_that_look_at_once_are_one_wait():
    limit, num_looks = timedelta(seconds=9), 8
    for _ in range(20):
        receive, begin = Receive(), threading.Barrier(num_looks)
        work = ThreadedWork([receive], limit)

        def look(work=work, begin=begin):
            begin.wait(10)
            return work.is_completed()

        with ThreadPoolExecutor(num_looks) as pool:
            looks = [pool.submit(look) for _ in range(num_looks)]
            assert not any(one.result(10) for one in looks)
        receive.came.set()
        work.wait(limit)
        assert receive.waits == [limit]
