"""How long a rank serves others that say nothing."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from relaxcomm.network import service_threads
from relaxcomm.network.byte_counters import ByteCounters
from relaxcomm.network.mailbox import GOODBYE, Channel
from relaxcomm.network.seal import Seal
from relaxcomm.network.service_messages import Header, Trailers, as_bytes
from relaxcomm.network.service_threads import ServiceThreads
from relaxcomm.network.transport import Membership
from tests.network.memoryless import Memoryless

SEAL = Seal(None, b"session1")
LIKE = torch.zeros(2)


class Work:
    """What goes well, or takes until the connection is closed."""

    def __init__(self, closed, *, goes_well):
        self._closed, self.goes_well = closed, goes_well

    def wait(self, limit):
        if not self.goes_well:
            self._closed.wait(limit.total_seconds())
            raise RuntimeError("closed")


class Connections:
    """Over which ranks have said goodbye, and others nothing.

    Args:
        left: those that have said goodbye.
        take_in: whether what is sent to the others arrives.
    """

    def __init__(self, left, *, take_in):
        self._left, self._take_in, self.closed = left, take_in, threading.Event()

    def send(self, tensors, other, tag):
        return Work(self.closed, goes_well=self._take_in)

    def recv(self, into, other, tag):
        if other in self._left and into[0].numel() > 1:  # not the notice
            goodbye = Trailers(SEAL, 0).make(Header(GOODBYE, other, 1, 0), LIKE)
            into[0].copy_(torch.cat([as_bytes(LIKE), goodbye]))
        return Work(self.closed, goes_well=other in self._left)


@pytest.fixture
def finish(monkeypatch):
    """Serves as rank 0 until all others have left, and counts how often it has looked."""
    monkeypatch.setattr(service_threads, "_SLICE_SECONDS", 0.01)
    made = []

    def run(left, *, take_in):
        connections = Connections(left, take_in=take_in)
        channel = Channel(Membership(0, 3), connections, connections, ByteCounters(), SEAL)
        served = ServiceThreads(channel, "rule 0", 0, Memoryless(), LIKE, LIKE)
        made.append((served, connections))
        served.say_goodbye()
        served.finish(0.05, lambda: looks.append(time.monotonic()))

    looks = []
    yield run, looks
    for served, connections in made:
        served.give_up()
        connections.closed.set()
        served.join(time.monotonic() + 5)


@pytest.mark.parametrize(
    ("left", "complaint"),
    [
        ({1}, r"nothing heard of ranks \[2\] for 0.05 s, and they still train"),
        ({1, 2}, r"all others have finished, but some of \[1, 2\] took in no goodbye for 0.05 s"),
    ],
    ids=["trains", "is stopped"],
)
def test_nobody_is_served_for_ever(finish, left, complaint):
    run, looks = finish
    with pytest.raises(TimeoutError, match=complaint):
        run(left, take_in=False)
    assert len(looks) > 1


def test_serving_ends_where_all_have_left_and_know_it(finish):
    finish[0]({1, 2}, take_in=True)
