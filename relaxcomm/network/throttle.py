"""A slow network on one machine: results are held back until their bytes would have passed a link.

The real bytes cross the loopback device at once. Headers cost nothing, and nobody waits for another
rank's link.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from relaxcomm.network.byte_counters import ByteCounters
from relaxcomm.network.link import Link
from relaxcomm.network.operations import Label, Operation, Received
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.network.secret import Secret
from relaxcomm.network.timeline import Timeline
from relaxcomm.network.torch_distributed import TorchTransport
from relaxcomm.network.traffic import messages_of
from relaxcomm.network.transport import Pending

_AT_ONCE = Link()


class Throttle:
    """One rank's link, which sends and receives at once, shared by all of the rank's transports.

    Args:
        link: its rate and burst, each way, and latency.
        clock: seconds.
    """

    def __init__(self, link: Link = _AT_ONCE, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.sent_bytes = 0
        self.shape(link)

    def shape(self, link: Link) -> None:
        """Become another link, on which nothing waits."""
        self.latency_seconds, self._link = link.latency_seconds, link
        self._ways = Timeline(2)  # out, and in
        self._ways.free_at[:] = -math.inf

    def move(self, sent: int, received: int) -> None:
        """Bytes of this rank that set out now, and bytes to it."""
        now, link = self.clock(), self._link
        for way, num_bytes in enumerate((sent, received)):
            if num_bytes:
                self._ways.depart(way, now, num_bytes / link.bytes_per_second, 0.0, link.burst_seconds)
        self.sent_bytes += sent

    @property
    def passed_at(self) -> float:
        """When all of them have passed."""
        return float(self._ways.free_at.max())


class _Metered(ByteCounters):
    """What a transport counts, its services' answers too, passes the link."""

    def __init__(self, throttle: Throttle) -> None:
        super().__init__()
        self._throttle = throttle

    def add(self, rule: str, sent: int = 0, received: int = 0) -> None:
        super().add(rule, sent, received)
        with self._lock:
            self._throttle.move(sent, received)


class ThrottledTransport(TorchTransport):
    """torch.distributed, each result of which is there when all of this rank's bytes have passed its link.

    A result takes the latency of the messages besides that wait for each other, see `messages`.

    Args:
        throttle: this rank's link.
        secret: that all ranks share, or None.
        settings: of `TorchTransport`.
    """

    def __init__(self, throttle: Throttle, *, secret: Secret | None = None, **settings: Any) -> None:
        super().__init__(Rendezvous.of(None, settings["timeout_seconds"], secret), **settings)
        self._throttle, self.counters = throttle, _Metered(throttle)

    def issue(self, operation: Operation, label: Label) -> Pending:
        begin = self._throttle.clock()
        pending = super().issue(operation, label)
        if self.membership.world_size == 1:
            return pending
        in_turn = messages_of(operation, self.membership.world_size)
        latency = in_turn * self._throttle.latency_seconds
        return _Held(pending, self._throttle.clock, max(begin, self._throttle.passed_at) + latency)


class _Held(Pending):
    """A result that is kept back; the limits of the real wait are over by then and count no more."""

    def __init__(self, pending: Pending, clock: Callable[[], float], until: float) -> None:
        self._pending, self._clock, self._until = pending, clock, until

    def arrived(self) -> bool:
        return self._pending.arrived() and self._clock() >= self._until

    def wait(self) -> Received:
        received = self._pending.wait()
        time.sleep(max(0.0, self._until - self._clock()))
        return received
