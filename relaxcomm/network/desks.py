"""Where the ranks of a simulation serve, what happens there, and what has failed."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from relaxcomm.errors import CommunicationError, worded
from relaxcomm.network.operation_slots import Slot
from relaxcomm.network.operations import Request

Desk: TypeAlias = tuple[int, str, int]
"""Where a rank serves: its transport's number, a rule and a unit."""


@dataclass
class Answers:
    """The answers to one request so far."""

    slot: Slot
    request: Request
    rows: Mapping[int, Tensor]  # of its `reply`, by the rank that is to fill it
    at_once: bool  # for a rank whose clock is stopped


def turn(server: int, client: int, size: int) -> int:
    """When a server sees to a client: each begins with another, or all would send to one after the other."""
    return (client - server) % size


class Events:
    """What happens at services, in the order of virtual time; requests that arrive go before alarms.

    Args:
        ring: called when the alarm of a rank's service rings.
    """

    def __init__(self, ring: Callable[[int, Desk], None]) -> None:
        self.now = 0.0
        """Where the service that is called stands."""
        self.arriving = 0
        """How many things are to happen that are no alarms."""
        self._events: list[tuple[float, bool, int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._ring = ring
        self._due: dict[tuple[int, Desk], float | None] = {}

    def at(self, when: float, happens: Callable[[], None], turn: int = 0) -> None:
        """Have something happen later; at the same time in turn, and then as it was told."""
        self.arriving += 1
        heapq.heappush(self._events, (when, False, turn, next(self._numbers), happens))

    def set_alarm(self, server: int, desk: Desk, due: float | None) -> None:
        """Have a service's alarm ring once, at that time and at no other, as `Alarm.set` does."""
        if due == self._due.get((server, desk)):
            return
        self._due[server, desk] = due

        def ring() -> None:
            if self._due.get((server, desk)) == due:
                self._ring(server, desk)

        if due is not None:
            heapq.heappush(self._events, (max(due, self.now), True, 0, next(self._numbers), ring))

    def drop_alarms(self) -> None:
        """Let no alarm ring that is set now, where nothing else is to happen."""
        self._events.clear()
        self._due.clear()

    def happen(self, until: float) -> bool:
        """Let the first thing happen: what arrives by `until`, an alarm before; whether there was any."""
        if not self._events or self._events[0][:2] >= (until, True):
            return False
        self.now, is_alarm, *_, happens = heapq.heappop(self._events)
        self.arriving -= not is_alarm
        happens()
        return True


class Failures:
    """Has all ranks end where a service fails: whichever runs meanwhile may have no part in it."""

    def __init__(self) -> None:
        self._first: tuple[str, Exception] | None = None

    @contextmanager
    def noted(self, server: int, desk: Desk) -> Iterator[None]:
        """Raise nothing of what a rank's service raises inside, but in `check`."""
        try:
            yield
        except Exception as error:
            place = f"the service of rank {server} for rule {desk[1]}, unit {desk[2]}"
            self._first = self._first or (place, error)

    def check(self) -> None:
        """Raise CommunicationError if a service has failed; each rank calls it again and again."""
        if self._first is not None:
            place, error = self._first
            raise CommunicationError(f"{place} has failed: {worded(error)}") from error
