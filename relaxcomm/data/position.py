"""How far a data set has been read on this rank, apart from the loaders that read it."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import ref


class Place(NamedTuple):
    """A place in an epoch: how many of this rank's samples and batches lie before it."""

    samples: int = 0
    batches: int = 0


@dataclass
class Reading:
    """One iteration over an epoch.

    Args:
        epoch: which one.
        place: behind the last batch that was given out.
        drawn: batches that were drawn and wait to be given out, each with the place behind it.
    """

    epoch: int
    place: Place
    drawn: deque[tuple[Any, Place]] = field(default_factory=deque)


class Progress:
    """Counts the epochs of a data set; loaders made one after the other for the same data share it.

    Example:
        >>> from relaxcomm.data import Progress
        >>> progress = Progress()
        >>> [progress.begin().epoch for _ in range(3)]
        [0, 1, 2]
    """

    def __init__(self) -> None:
        self._epoch, self._place = 0, Place()
        self._latest: tuple[ref[Generator[Any, None, None]], Reading] | None = None

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration reads; one that is set is read from its beginning."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch, self._place, self._latest = epoch, Place(), None

    def begin(self) -> Reading:
        """Begin the next epoch, or go on in one that a checkpoint left in the middle."""
        reading = Reading(self._epoch, self._place)
        self.epoch += 1
        return reading

    def follow(self, batches: Generator[Any, None, None], reading: Reading) -> None:
        """Look at who gives the batches of an iteration out: one that was left counts as a whole epoch."""
        self._latest = ref(batches), reading

    def export(self) -> dict[str, Any]:
        """What a checkpoint keeps: the next batch's epoch and place."""
        epoch, place = self._epoch, self._place
        if self._latest is not None:
            batches = self._latest[0]()
            if batches is not None and inspect.getgeneratorstate(batches) != inspect.GEN_CLOSED:
                epoch, place = self._latest[1].epoch, self._latest[1].place
        return {"epoch": epoch, "place": list(place)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a checkpoint in the next iteration."""
        self.epoch = saved["epoch"]
        self._place = Place(*saved["place"])
