"""Who waits for whom in an exchange."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from relaxcomm.network.timeline import Times
from relaxcomm.planner.pairs import Pair
from relaxcomm.roles import Awaited
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
    ranks = range(workers)
    return _from_rows(
        lambda step: [sorted({rank, *graph.weights(workers, step)[rank]}) for rank in ranks],
        graph.period_steps(workers),
    )


def from_senders(pairs: Sequence[Pair], workers: int) -> Heard:
    """Each for those who send to it."""
    heard = [[rank] for rank in range(workers)]
    for one, other in pairs:
        heard[other].append(one)
    return _from_rows(lambda step: heard, 1)


def _from_rows(rows: Callable[[int], Sequence[Sequence[int]]], period: int) -> Heard:
    """Each for those in its row, of which there are others in each step of a period."""

    @functools.cache
    def places(step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        held = rows(step)
        return np.concatenate(held), np.cumsum([0, *map(len, held)])[:-1]

    def heard(arrived: Times, before: int) -> Times:
        if len(arrived) == 1:  # all alike
            return arrived
        ranks, starts = places(before % period)
        found: Times = np.maximum.reduceat(arrived[ranks], starts)
        return found

    return heard


def served(awaited: Awaited) -> Heard:
    """Each for those without whom a service does not answer."""
    return alone if awaited == Awaited(1) else _Served(awaited)


@dataclass
class _Served:
    """Nobody has a result before enough others have pushed what it may not miss."""

    awaited: Awaited
    pushed: list[Times] = field(default_factory=list)

    def __call__(self, arrived: Times, before: int) -> Times:
        del self.pushed[before:]  # those of an earlier replay
        self.pushed.append(arrived)
        least = before - self.awaited.staleness
        if least < 0:
            return arrived
        pushed, last = self.pushed[least], self.awaited.workers - 1
        reached = pushed[0] if len(pushed) == 1 else np.partition(pushed, last)[last]
        found: Times = np.maximum(arrived, min(pushed.max(), reached + self.awaited.grace_seconds))
        return found
