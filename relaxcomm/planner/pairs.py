"""Who sends to whom, and which share of a worker's bytes goes each way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
    """Every rank sends the same message to each of its neighbours: who has more of them sends more.

    Args:
        pairs: who sends to whom.
        workers: number of ranks.

    Example:
        >>> star = NeighborPairs(((0, 1), (1, 0), (0, 2), (2, 0)), workers=3)
        >>> star.busiest  # the hub sends half of all bytes
        1.5
    """

    pairs: tuple[Pair, ...]
    workers: int

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: Any) -> Any:
        return self.pairs[index]

    @property
    def share(self) -> float:
        """Of what a worker sends on average, what each pair carries."""
        return self.workers / len(self.pairs)

    @cached_property
    def busiest(self) -> float:
        """What the busiest worker sends or receives, of what a worker sends on average."""
        counts = Counter(one for one, _ in self.pairs), Counter(other for _, other in self.pairs)
        return self.share * max((max(count.values()) for count in counts), default=0)


def shares(pairs: Sequence[Pair]) -> Mapping[int, float]:
    """Which share of a worker's bytes goes to each of its peers, for each rank that sends.

    Example:
        >>> shares([(0, 1), (0, 2), (1, 0)])
        {0: 0.5, 1: 1.0}
    """
    counts = Counter(one for one, _ in pairs)
    if isinstance(pairs, NeighborPairs):
        return dict.fromkeys(counts, pairs.share)
    return {one: 1 / count for one, count in counts.items()}
