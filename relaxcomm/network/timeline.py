"""Clocks in virtual time, and when what is sent is there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]


class Timeline:
    """When each rank is where, and until when its link is busy.

    All that runs in virtual time runs on it: ranks that train in threads, which post one after the other, and
    plans, which post for all ranks at once; and real messages that a `Throttle` holds back. A link sends one
    message after the other; after a rest it may send some at once, as a token bucket of rate `r` and burst
    `b` does: bytes that come at `t` and are `seconds` long at its rate have left at
    `max(t - b / r, free) + seconds`, though never before `t`.

    Args:
        size: number of ranks.

    Example:
        >>> timeline = Timeline(2)
        >>> first = timeline.depart(0, 0.0, seconds=2.0, latency_seconds=0.5)
        >>> second = timeline.depart(0, 1.0, seconds=2.0, latency_seconds=0.5)  # waits for the first
        >>> float(first), float(second)
        (2.5, 4.5)
        >>> later = timeline.depart(0, 14.0, seconds=2.0, latency_seconds=0.5, burst_seconds=1.5)
        >>> float(later)
        15.0
    """

    def __init__(self, size: int) -> None:
        self.free_at: Times = np.zeros(size)

    def depart(
        self,
        ranks: int | slice | NDArray[np.bool_],
        start: Any,
        seconds: Any,
        latency_seconds: Any,
        burst_seconds: float = 0.0,
    ) -> Any:
        """When what ranks send has arrived.

        Args:
            ranks: one, all, or some of them.
            start: when they hand it to their links.
            seconds: for which it occupies a link.
            latency_seconds: until the last of it is there; others may follow meanwhile.
            burst_seconds: of what passes at once after a rest, at the link's rate.
        """
        done = np.maximum(start - burst_seconds, self.free_at[ranks]) + seconds
        self.free_at[ranks] = done
        return np.maximum(start, done) + latency_seconds
