"""What is counted in every step: plain numbers, so that counting costs no more than adding."""

from __future__ import annotations

import time
from bisect import bisect_left

STEP_BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0),
)
"""Upper bounds of the buckets of step times, 1 ms to 100 s, in seconds."""


class Histogram:
    """Counts of observations in buckets, and their sum.

    Args:
        bounds: upper bounds, ascending; one more bucket takes what lies above.

    Example:
        >>> times = Histogram((0.1, 1.0))
        >>> times.observe(0.1)
        >>> times.counts, times.count, times.total
        ([1, 0, 0], 1, 0.1)
    """

    def __init__(self, bounds: tuple[float, ...] = STEP_BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many were observed."""
        return sum(self.counts)


class InFlight:
    """How long exchanges were on their way: each rule's operations, and the time with at least one of any.

    An operation is on its way from its issue until the engine takes its result, which may be later than
    its arrival, or forgets it.
    """

    def __init__(self) -> None:
        self.by_rule: dict[str, tuple[int, float]] = {}
        self._flying = 0
        self._since = 0.0
        self._seconds = 0.0
        self._forgotten = 0.0  # when; what has departed before is on its way no more

    def departed(self) -> float:
        """An operation is issued, or something is waited for; returns the time."""
        now = time.perf_counter()
        if not self._flying:
            self._since = now
        self._flying += 1
        return now

    def landed(self, departed: float) -> float:
        """The result of what has departed then is taken, or the wait is over; returns the time."""
        now = time.perf_counter()
        if departed >= self._forgotten:
            self._flying -= 1
            if not self._flying:
                self._seconds += now - self._since
        return now

    def forget(self) -> None:
        """Count nothing that has departed as on its way: some of it will never land."""
        self._forgotten = time.perf_counter()
        self._seconds, self._flying = self.seconds(self._forgotten), 0

    def arrived(self, rule: str, departed: float) -> None:
        """A rule's operation has landed."""
        count, seconds = self.by_rule.get(rule, (0, 0.0))
        self.by_rule[rule] = count + 1, seconds + self.landed(departed) - departed

    def seconds(self, now: float) -> float:
        """Time with at least one operation on its way, until `now`."""
        return self._seconds + (now - self._since if self._flying else 0.0)
