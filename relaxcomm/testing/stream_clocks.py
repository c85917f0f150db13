"""Vector clocks of a pretended GPU: what each stream, and each thread of the host, knows to be done."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TypeAlias

Clock: TypeAlias = dict[int, int]
"""Of each stream how many of its kernels are done before whatever comes next."""


def join(clock: Clock, other: Mapping[int, int]) -> None:
    """From now on what `other` knows is known, too."""
    for stream, time in other.items():
        if time > clock.get(stream, 0):
            clock[stream] = time


class Clocks:
    """The clocks of one GPU.

    Args:
        is_eager: whether an event has happened as soon as somebody looks; else the first look finds that it
            has not, unless whoever looks knows already.
    """

    def __init__(self, is_eager: bool) -> None:
        self.is_eager = is_eager
        self.issued: Clock = {}
        """How many kernels each stream was given."""
        self._threads = threading.local()

    def host(self) -> Clock:
        """What this thread of the host knows."""
        if not hasattr(self._threads, "clock"):
            self._threads.clock = {}
        clock: Clock = self._threads.clock
        return clock

    def add_stream(self) -> int:
        """The number of a stream that has done nothing yet."""
        number = len(self.issued)
        self.issued[number] = 0
        return number

    def issue(self, stream: int, clock: Clock) -> None:
        """A stream is given a kernel, which comes after all that the host knows to be done."""
        join(clock, self.host())
        clock[stream] = self.issued[stream] = self.issued[stream] + 1
