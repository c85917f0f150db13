"""Who sends to whom, and which share of a worker's bytes goes each way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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
    """Ranks that send each of their neighbours the same, and some ranks more than others.

    Args:
        pairs: who sends to whom, in some step.
        sent: by each rank in a step, of what a rank sends on average.
        busiest: what the busiest rank sends or receives in a step, of the same.

    Example:
        >>> from relaxcomm.primitives import star
        >>> pairs = NeighborPairs.over(star(), workers=3)
        >>> pairs.sent, pairs.busiest  # the hub sends half of all messages
        ((1.5, 0.75, 0.75), 1.5)
    """

    pairs: tuple[Pair, ...]
    sent: tuple[float, ...]
    busiest: float

    @classmethod
    def over(cls, graph: Topology, workers: int) -> NeighborPairs:
        """Those of a graph, on average over its steps: who has more neighbours sends more messages."""
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
        return cls(pairs, tuple((sent / mean).tolist()), float(busiest / mean))

    @classmethod
    def of_parts(cls, pairs: Sequence[Pair], parts: Sequence[float]) -> NeighborPairs:
        """Ranks that send such parts of the message."""
        mean = sum(parts) / len(parts)
        sent = tuple(part / mean for part in parts)
        return cls(tuple(pairs), sent, max(sent))

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: Any) -> Any:
        return self.pairs[index]


def shares(pairs: Sequence[Pair]) -> Mapping[int, float]:
    """Which share of a worker's bytes goes to each of its peers, for each rank that sends.

    Example:
        >>> shares([(0, 1), (0, 2), (1, 0)])
        {0: 0.5, 1: 1.0}
    """
    counts = Counter(one for one, _ in pairs)
    sent = pairs.sent if isinstance(pairs, NeighborPairs) else None
    return {one: (1.0 if sent is None else sent[one]) / count for one, count in counts.items()}
