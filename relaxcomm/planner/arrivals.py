"""Who waits for whom in an exchange."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from relaxcomm.network.timeline import Times
from relaxcomm.primitives.exchanges.quorum_average import quorum_average
from relaxcomm.primitives.exchanges.server import server
from relaxcomm.roles import Exchange
from relaxcomm.topology import Topology

Heard = Callable[[Times, int], Times]
"""When each rank has its result: from when each one's messages have arrived, and how many rounds were
before."""


def alone(arrived: Times, before: int) -> Times:
    """Each for nobody: it has its result when its own messages have arrived."""
    return arrived


def from_all(arrived: Times, before: int) -> Times:
    """Each for all."""
    return np.full_like(arrived, arrived.max())


def from_neighbors(graph: Topology, workers: int) -> Heard:
    """Each for those whose messages it takes."""
    period = graph.period_steps(workers)

    @functools.cache
    def rows(step: int) -> list[list[int]]:
        return [sorted({rank, *graph.weights(workers, step)[rank]}) for rank in range(workers)]

    def heard(arrived: Times, before: int) -> Times:
        if len(arrived) == 1:  # all alike
            return arrived
        held = rows(before % period)
        starts = np.cumsum([0, *map(len, held)])[:-1]
        found: Times = np.maximum.reduceat(arrived[np.concatenate(held)], starts)
        return found

    return heard


def by_groups(groups: Sequence[Sequence[int]]) -> Heard:
    """Each for those of its group."""

    def heard(arrived: Times, before: int) -> Times:
        if len(arrived) == 1:
            return arrived
        found = arrived.copy()
        for group in groups:
            found[list(group)] = arrived[list(group)].max()
        return found

    return heard


def served(exchange: Exchange, workers: int) -> Heard:
    """Each for those without whom a service does not answer."""
    if isinstance(exchange, server) and math.isfinite(exchange.staleness):
        return _Bounded(int(exchange.staleness))
    if exchange.facts.same_result:
        return from_all
    if isinstance(exchange, quorum_average):
        return _quorum(exchange.quorum_among(workers), exchange.grace_seconds)
    return alone


@dataclass
class _Bounded:
    """Nobody has a result before all others have pushed what it may not miss."""

    staleness: int
    pushed: list[Times] = field(default_factory=list)

    def __call__(self, arrived: Times, before: int) -> Times:
        del self.pushed[before:]  # those of an earlier replay
        self.pushed.append(arrived)
        least = before - self.staleness
        found: Times = arrived if least < 0 else np.maximum(arrived, self.pushed[least].max())
        return found


def _quorum(quorum: int, grace_seconds: float) -> Heard:
    def heard(arrived: Times, before: int) -> Times:
        reached = arrived[0] if len(arrived) == 1 else np.partition(arrived, quorum - 1)[quorum - 1]
        return np.maximum(arrived, min(float(arrived.max()), float(reached) + grace_seconds))

    return heard
