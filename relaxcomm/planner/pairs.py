"""Who sends to whom, and which share of a worker's bytes goes each way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relaxcomm.topology import Topology
from relaxcomm.topology.mixing import entries_of

Pair = tuple[int, int]


@dataclass(frozen=True)
class AllPairs(Sequence[Pair]):
    """Every rank sends to every other.

    Args:
        workers: their number.
    """

    workers: int

    def __len__(self) -> int:
        return self.workers * (self.workers - 1)

    def __getitem__(self, index: Any) -> Any:
        one, place = divmod(range(len(self))[index], self.workers - 1)
        return one, place + (place >= one)


@dataclass(frozen=True)
class NeighborPairs(Sequence[Pair]):
    """Ranks of which some send more than others.

    Args:
        pairs: who sends to whom, in some step.
        sent: from one to the other in a step, of what a rank sends on average.
        busiest: what the busiest rank sends or receives in a step, of the same.
        own: what each rank does of that; one number where all take as long.

    Example:
        >>> from relaxcomm.primitives import star
        >>> pairs = NeighborPairs.over(star(), workers=3)
        >>> pairs.pairs, pairs.busiest  # the hub sends half of all messages
        (((0, 1), (0, 2), (1, 0), (2, 0)), 1.5)
    """

    pairs: tuple[Pair, ...]
    sent: tuple[float, ...]
    busiest: float
    own: tuple[float, ...] = (1.0,)

    @classmethod
    def over(cls, graph: Topology, workers: int) -> NeighborPairs:
        """Those of a graph, on average over its steps: each gets the same message from all its neighbours."""
        steps = [entries_of(graph.weights(workers, step)) for step in range(graph.period_steps(workers))]
        sent, busiest, numbers = np.zeros(workers), 0.0, []
        for one in steps:
            others = one.givers != one.takers
            givers, takers = one.givers[others], one.takers[others]
            out, into = (np.bincount(ranks, minlength=workers) for ranks in (givers, takers))
            sent += out
            busiest += max(out.max(), into.max())
            numbers.append(givers * workers + takers)
        found = np.divmod(np.unique(np.concatenate(numbers)), workers)
        mean = max(sent.mean(), 1e-12)  # of a graph without links
        pairs = tuple(zip(*(ranks.tolist() for ranks in found), strict=True))
        each = sent / mean / np.maximum(np.bincount(found[0], minlength=workers), 1)
        return cls(pairs, tuple(each[found[0]].tolist()), float(busiest / mean))

    @classmethod
    def of_parts(cls, parts: Mapping[Pair, float], workers: int) -> NeighborPairs:
        """Those that send each other such parts of the message."""
        mean = sum(parts.values()) / workers
        out, into = np.zeros(workers), np.zeros(workers)
        for (one, other), part in parts.items():
            out[one] += part / mean
            into[other] += part / mean
        each = np.maximum(out, into)
        busiest = float(each.max())
        own = tuple((each / busiest).tolist())
        sent = tuple(part / mean for part in parts.values())
        return cls(tuple(parts), sent, busiest, own if min(own) < 1 - 1e-9 else (1.0,))

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: Any) -> Any:
        return self.pairs[index]


def own_parts(pairs: Sequence[Pair] | None) -> NDArray[np.float64]:
    """What each rank sends or receives, of what the busiest does; one number where all do as much."""
    return np.array(pairs.own if isinstance(pairs, NeighborPairs) else (1.0,))


@cache
def ring_pairs(workers: int) -> tuple[Pair, ...]:
    """Each rank sends to the next; one that is alone sends nothing."""
    return tuple((rank, (rank + 1) % workers) for rank in range(workers)) if workers > 1 else ()


def shares(pairs: Sequence[Pair]) -> Sequence[float]:
    """What goes from one to the other, of what a worker sends on average.

    Example:
        >>> shares([(0, 1), (0, 2), (1, 0)])
        [0.5, 0.5, 1.0]
    """
    if isinstance(pairs, NeighborPairs):
        return pairs.sent
    counts = Counter(one for one, _ in pairs)
    return [1 / counts[one] for one, _ in pairs]
