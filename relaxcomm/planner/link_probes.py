"""Measures the slowest link of the workers, by all-reduces of a few sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from relaxcomm.network.operations import AllReduce, Label
from relaxcomm.step.bound import Bound

_FEW = 3  # all-reduces of few bytes
_SIZES = tuple(1 << power for power in range(17, 23))  # bytes, until one takes long enough
_EXCHANGES = 8  # of the model, beyond whose bytes a probe but the first one would tell nothing of them
_SECONDS = 0.02  # that a probe takes at least: links let a burst pass faster than they can go on
_LATENCIES = 3  # that it takes at least
_HELD_UP = 0.1, 5  # seconds, and times the last probe, from which on a packet may have been lost
_NOISE = 0.01  # of a probe's time, which nothing less can be told from
_TINY_SECONDS = 1e-9


class MeasuredLink(NamedTuple):
    """The slowest worker's."""

    latency_seconds: float
    """Of an all-reduce of few bytes."""
    bytes_per_second: float
    """At which a worker's bytes leave it."""


class Probe(NamedTuple):
    """One all-reduce."""

    sent_bytes: int
    """That a worker sends in it."""
    seconds: float
    """That it took."""


def measure_link(bound: Bound, largest: Callable[[list[float]], list[float]]) -> MeasuredLink:
    """The slowest link; every rank calls this in the same step.

    Args:
        bound: the algorithm on a model.
        largest: of each of several numbers, over all workers.
    """
    few = 4 * 2 * bound.world.size  # bytes: of fewer entries than a ring has messages Gloo makes no ring
    own = [min((_probe(bound, few) for _ in range(_FEW)), key=_seconds)]
    probes: list[Probe] = []  # as the slowest worker saw them
    for num_bytes in probe_sizes(sum(item.share_bytes for item in bound.replica.parameters)):
        probes += _slowest([*own, _probe(bound, num_bytes)], largest)
        own.clear()
        if _may_be_held_up(*probes[-2:]):
            again = _slowest([_probe(bound, num_bytes)], largest)
            probes.append(min(probes.pop(), *again, key=_seconds))
        if probes[-1].seconds >= max(_SECONDS, _LATENCIES * probes[0].seconds):
            break
    return MeasuredLink(probes[0].seconds, bytes_per_second(probes))


def probe_sizes(parameter_bytes: int) -> list[int]:
    """Bytes of the all-reduces that measure a link, of which the first that takes long enough is the last.

    Args:
        parameter_bytes: of the model.
    """
    return [_SIZES[0], *(size for size in _SIZES[1:] if size <= _EXCHANGES * parameter_bytes)]


def _seconds(probe: Probe) -> float:
    return probe.seconds


def _slowest(own: list[Probe], largest: Callable[[list[float]], list[float]]) -> list[Probe]:
    """This worker's probes as the slowest worker saw them."""
    seconds = largest([probe.seconds for probe in own])
    return [probe._replace(seconds=slowest) for probe, slowest in zip(own, seconds, strict=True)]


def _may_be_held_up(before: Probe, last: Probe) -> bool:
    """Whether a probe took so much longer than the one before that it is worth another one.

    A lost packet is sent again after a fifth of a second, in which a link passes many times a probe.
    """
    least, times = _HELD_UP
    return last.seconds > max(least, times * before.seconds)


def bytes_per_second(probes: Sequence[Probe]) -> float:
    r"""A link's rate by what probes took, of which the first one waits only.

    $$r = \min\left(\max\left(\frac{s_n - s_{n-1}}{t_n - t_{n-1}}, \frac{s_n}{t_n}\right),
    \frac{s_n}{\max(t_n - t_0, 0.01\,t_n)}\right)$$

    On a long way latency adds to the transfer. Among processes that wait for a core it hides behind it,
    so that nothing may be taken off. What one more byte takes tells which, and noise is kept between both.

    Args:
        probes: in the order of their sizes.
    """
    first, (before, last) = probes[0], probes[-2:]
    if not last.sent_bytes:
        return math.inf
    added = (last.sent_bytes - before.sent_bytes) / max(last.seconds - before.seconds, _TINY_SECONDS)
    with_all = last.sent_bytes / max(last.seconds, _TINY_SECONDS)
    transfer = max(last.seconds - first.seconds, _NOISE * last.seconds, _TINY_SECONDS)
    return min(max(added, with_all), last.sent_bytes / transfer)


def now(bound: Bound) -> float:
    """The time at which this rank's device has done all that it was given."""
    device = bound.replica.device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return bound.world.transport.now()


def _probe(bound: Bound, num_bytes: int) -> Probe:
    """As this worker sees it."""
    operation = AllReduce(torch.zeros(num_bytes // 4, device=bound.replica.device))
    sent_bytes, _ = bound.world.transport.traffic(operation)
    begin = now(bound)
    bound.world.run(operation, Label(bound.common_step, "probe"))
    return Probe(sent_bytes, now(bound) - begin)
