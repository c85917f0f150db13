"""How long exchanges between GPUs took, by events in the GPU's stream, for which the host does not wait."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Crossing:
    """One exchange, as events of the stream that waits for it.

    Args:
        issued: when what is sent was there.
        waits: when the stream had nothing to do but wait for it.
        landed: when what came was there.
    """

    issued: Any
    waits: Any
    landed: Any


class DeviceTimes:
    """Adds up crossings that have landed, in the order in which they were issued."""

    def __init__(self) -> None:
        self._crossings: deque[Crossing] = deque()
        self._latest: Any = None  # the latest landing so far

    def add(self, crossing: Crossing) -> None:
        """One more, which lands later."""
        self._crossings.append(crossing)

    def take(self) -> tuple[float, float]:
        """Seconds of those that have landed since this was asked last; nobody waits for others.

        Returns: in which the stream waited, and in which something was on its way.
        """
        exposed = flown = 0.0
        while self._crossings and self._crossings[0].landed.query():
            one = self._crossings.popleft()
            latest = self._latest or one.issued
            begin, end = (latest.elapsed_time(event) / 1e3 for event in (one.issued, one.landed))
            exposed += one.waits.elapsed_time(one.landed) / 1e3
            flown += max(0.0, end - max(begin, 0.0))
            self._latest = one.landed if end > 0 else latest
        return exposed, flown
