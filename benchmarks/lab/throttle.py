"""A stand-in for a slow network where no hosts can be made: results are held back at relaxcomm's transport.

A rank's results wait for the bytes that it sent itself, by the count of its transport; the real ones cross
the loopback device at once. Headers cost nothing, and nobody waits for another rank's link.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.lab.contenders import Contender, EveryStep, Nothing, Relaxcomm
from benchmarks.lab.network import BURST_BYTES
from relaxcomm.config import Config, load
from relaxcomm.operations import AllReduce, Label, Operation, Received
from relaxcomm.transport import ByteCounters, Pending, TorchTransport

_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def bytes_per_second(rate: str | None) -> float:
    """Of a rate as `tc` writes it, such as "100mbit"; None is as fast as can be."""
    if rate is None:
        return float("inf")
    if (found := re.fullmatch(r"([\d.]+)(kbit|mbit|gbit)", rate)) is None:
        raise ValueError(f'a rate is a number of kbit, mbit or gbit, such as "100mbit"; got {rate!r}')
    return float(found[1]) * _UNITS[found[2]] / 8


class TokenBucket:
    """When bytes have passed a link: at once as long as there are tokens, then as fast as tokens come in.

    With `t` the moment at which no byte waits any more, rate `r` and burst `b`, `n` bytes that are sent now
    set `t = max(t, now - b / r) + n / r`.

    Args:
        rate: as `tc` writes it, or None.
        clock: seconds.
    """

    def __init__(self, rate: str | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.sent_bytes = 0
        self.shape(rate)

    def shape(self, rate: str | None) -> None:
        """Set the rate; the bucket is full again."""
        self._rate = bytes_per_second(rate)
        self.passed_at = -float("inf")

    def send(self, num_bytes: int) -> None:
        """Take tokens for bytes that are sent now."""
        full = self.clock() - BURST_BYTES / self._rate
        self.passed_at = max(self.passed_at, full) + num_bytes / self._rate
        self.sent_bytes += num_bytes

    def left_seconds(self, moment: float) -> float:
        """Until a moment of `passed_at`; not positive when it is over."""
        return moment - self.clock()


class _Metered(ByteCounters):
    """What a transport counts as sent, its services' answers too, takes tokens."""

    def __init__(self, bucket: TokenBucket) -> None:
        super().__init__()
        self._bucket = bucket

    def add(self, rule: str, sent: int = 0, received: int = 0) -> None:
        super().add(rule, sent, received)
        with self._lock:
            self._bucket.send(sent)


class ThrottledTransport(TorchTransport):
    """Gloo, each result of which is there when the bucket has let all of this rank's bytes pass.

    Args:
        bucket: of this rank, shared by all its transports.
        settings: limits and checks, as of a run.
    """

    def __init__(self, bucket: TokenBucket, settings: Config) -> None:
        super().__init__(
            None,
            device=torch.device("cpu"),
            backend=settings.backend,
            timeout_seconds=settings.timeout_seconds,
            debug=settings.debug,
        )
        self._bucket, self.counters = bucket, _Metered(bucket)

    def issue(self, operation: Operation, label: Label) -> Pending:
        return _Held(super().issue(operation, label), self._bucket)


class _Held(Pending):
    """A result that is kept back; the limits of the real wait are over by then and count no more."""

    def __init__(self, pending: Pending, bucket: TokenBucket) -> None:
        self._pending, self._bucket, self._until = pending, bucket, bucket.passed_at

    def arrived(self) -> bool:
        return self._pending.arrived() and self._bucket.left_seconds(self._until) <= 0

    def wait(self) -> Received:
        received = self._pending.wait()
        time.sleep(max(0.0, self._bucket.left_seconds(self._until)))
        return received


class ThrottledEveryStep(EveryStep):
    """The last average, over a throttled transport."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, *, bucket: TokenBucket) -> None:
        super().__init__(model, optimizer)
        self._transport = ThrottledTransport(bucket, load({"algorithm": "bsp"}))

    def add_up(self, flat: Tensor) -> None:
        self._transport.issue(AllReduce(flat, "sum"), Label(0, "every_step")).wait()

    def close(self) -> None:
        self._transport.close()


class ThrottledRelaxcomm(Relaxcomm):
    """relaxcomm, over a throttled transport."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, *, bucket: TokenBucket, **config: Any) -> None:
        transport = ThrottledTransport(bucket, load(config))
        super().__init__(model, optimizer, process_group=transport, **config)


CAN: Mapping[str, Callable[..., Contender]] = {
    "nothing": lambda model, optimizer, bucket: Nothing(model, optimizer),
    "every_step": ThrottledEveryStep,
    "relaxcomm": ThrottledRelaxcomm,
}
CANNOT = "It uses torch.distributed directly, past the throttle at relaxcomm's transport."
