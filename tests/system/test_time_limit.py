"""Calls that are ended when their time is over."""

import threading
import time

import pytest

from relaxcomm import simulate
from relaxcomm.system.time_limit import within


def test_what_is_on_its_way_out_is_not_ended_again():
    """Others may wait for what it does last, however long that takes on a busy machine."""
    done = []

    def call():
        try:
            while True:
                pass
        finally:
            time.sleep(0.3)
            done.append("last")

    with pytest.raises(TimeoutError):
        within(0.1, call, end=True)
    assert done == ["last"]


def test_simulated_ranks_that_have_not_begun_are_ended_too():
    before = set(threading.enumerate())

    def rank_0_never_ends(group):
        while group.rank() == 0:
            pass

    with pytest.raises(TimeoutError):
        within(0.1, lambda: simulate(rank_0_never_ends, 3), end=True)
    assert set(threading.enumerate()) <= before
