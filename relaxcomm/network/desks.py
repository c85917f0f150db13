"""Where the ranks of a simulation serve, and what has failed there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from relaxcomm.errors import CommunicationError, worded

Desk: TypeAlias = tuple[int, str, int]
"""Where a rank serves: its transport's number, a rule and a unit."""


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
