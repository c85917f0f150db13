"""Rounds of all ranks that none of them waits for."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from relaxcomm.network.timeline import Times


class Rounds:
    """When each rank sends again: at the end of a step, once its last round is there.

    A replay goes step by step, and one rank's clock may be far behind another's in the same step. So what a
    rank does is told when all clocks have come as far.

    Args:
        ranks: their number.

    Example:
        >>> import numpy as np
        >>> rounds, found = Rounds(2), []
        >>> for step in (1.0, 2.0, 3.0, 4.0):
        ...     for rank, now in rounds.due(np.array([step, 2 * step])):
        ...         found.append((rank, now))
        ...         rounds.send(rank, now + 0.5)
        >>> found  # rank 0 has waited for rank 1
        [(0, 1.0), (1, 2.0), (0, 3.0), (1, 4.0)]
    """

    def __init__(self, ranks: int) -> None:
        self._next = [0] * ranks  # by rank, the round that it sends then
        self._senders: list[int] = []  # by round, how many have sent
        self._there: list[float] = []  # by round, when all of that is there
        self._ends: list[tuple[float, int]] = []  # of steps

    def due(self, clocks: Times) -> Iterator[tuple[int, float]]:
        """Who sends, and when; whoever asks for the next has sent it.

        Args:
            clocks: at the end of a step of each rank.
        """
        for end in zip(clocks.tolist(), range(len(clocks)), strict=True):
            heapq.heappush(self._ends, end)
        until = float(clocks.min())
        while self._ends and self._ends[0][0] <= until:
            now, rank = heapq.heappop(self._ends)
            if self._is_there(self._next[rank] - 1, now):
                yield rank, now

    def send(self, rank: int, arrives: float) -> None:
        """A rank has sent its part of its next round, which is there then."""
        number = self._next[rank]
        self._next[rank] += 1
        if number == len(self._senders):
            self._senders.append(0)
            self._there.append(-math.inf)
        self._senders[number] += 1
        self._there[number] = max(self._there[number], arrives)

    def _is_there(self, number: int, now: float) -> bool:
        return number < 0 or (self._senders[number] == len(self._next) and self._there[number] <= now)
