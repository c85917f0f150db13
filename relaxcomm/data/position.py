"""How far a data set has been read on this rank, apart from the loaders that read it."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias
from weakref import ref

import numpy as np
from numpy.typing import NDArray


class Position(NamedTuple):
    """A position in an epoch: how many of this rank's samples and batches lie before it.

    Args:
        samples: of this rank's share.
        batches: of this rank.
        unit: samples that were dealt out together, to all ranks; 0 where clients are played.
    """

    samples: int = 0
    batches: int = 0
    unit: int = 0


Dealt: TypeAlias = tuple[tuple[Position, ...], ...]
"""How far each rank came in an epoch, each time that there was another number of ranks."""


@dataclass
class Reading:
    """One iteration over an epoch.

    Args:
        epoch: which one.
        position: behind the last batch that was given out.
        drawn: batches that were drawn and wait to be given out, each with the position behind it.
        are_all_drawn: whether none is left to draw.
    """

    epoch: int
    position: Position
    drawn: deque[tuple[Any, Position]] = field(default_factory=deque)
    are_all_drawn: bool = False

    @property
    def is_over(self) -> bool:
        """Whether the last batch was given out."""
        return self.are_all_drawn and not self.drawn


class Progress:
    """Counts the epochs of a data set; loaders made one after the other for the same data share it.

    Example:
        >>> from relaxcomm.data import Progress
        >>> progress = Progress()
        >>> [progress.begin().epoch for _ in range(3)]
        [0, 1, 2]
    """

    def __init__(self) -> None:
        self._epoch, self._first, self._position = 0, 0, Position()
        self._dealt: dict[int, Dealt] = {}
        self._latest: tuple[ref[Generator[Any, None, None]], Reading] | None = None
        self.in_round = False
        """Whether a round of clients has begun and not ended."""

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration reads; one that is set is read from its beginning."""
        return self._epoch - self._first

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._dealt.pop(epoch + self._first, None)
        self._go_to(epoch + self._first, Position())

    @property
    def order(self) -> int:
        """The order in which the next iteration reads: its epoch, counted with those of data like these."""
        return self._epoch

    @property
    def position(self) -> Position:
        """Where in it the next iteration begins."""
        return self._position

    @property
    def is_at_begin(self) -> bool:
        """Whether nothing was read, and no epoch set."""
        return (self._epoch, self._position) == (0, Position())

    def skip_orders(self, order: int) -> None:
        """Read the next epoch in an order that comes no earlier, unless a part of it was read."""
        if self._epoch < order and self._position == Position() and self._epoch not in self._dealt:
            self._first += order - self._epoch
            self._go_to(order, Position())

    def dealt(self, epoch: int) -> Dealt:
        """What of an epoch other numbers of ranks have read before the ranks that there are now."""
        return self._dealt.get(epoch, ())

    def begin(self) -> Reading:
        """Begin the next epoch, or go on in one that a checkpoint left in the middle."""
        reading = Reading(self._epoch, self._position)
        self._go_to(self._epoch + 1, Position())
        return reading

    def follow(self, batches: Generator[Any, None, None], reading: Reading) -> None:
        """Look at who gives the batches of an iteration out: one that was left counts as a whole epoch."""
        self._latest = ref(batches), reading

    def end(self) -> None:
        """All batches of an iteration were given out."""
        self._latest, self.in_round = None, False

    def export(self) -> dict[str, Any]:
        """What a checkpoint keeps: the next batch's epoch and position; the latter as "place"."""
        epoch, position, is_over = self._epoch, self._position, False
        if self._latest is not None:
            batches = self._latest[0]()
            if batches is not None and inspect.getgeneratorstate(batches) != inspect.GEN_CLOSED:
                reading = self._latest[1]
                epoch, position, is_over = reading.epoch, reading.position, reading.is_over
        dealt = [
            [at, [[list(one) for one in positions] for positions in kept]]
            for at, kept in self._dealt.items()
            if at >= epoch
        ]
        return {
            "epoch": epoch,
            "first": self._first,
            "place": list(position),
            "is_over": is_over,
            "dealt": dealt,
            "in_round": self.in_round,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a checkpoint in the next iteration."""
        self._go_to(saved["epoch"], Position(*saved["place"]))
        self._first, self.in_round = saved["first"], saved["in_round"]
        self._dealt = {
            epoch: tuple(tuple(Position(*one) for one in positions) for positions in kept)
            for epoch, kept in saved["dealt"]
        }

    def _go_to(self, epoch: int, position: Position) -> None:
        self._epoch, self._position, self._latest = epoch, position, None


def unit_of(positions: Sequence[Position]) -> int:
    """How many samples were dealt out together to these ranks, as those know that have read any."""
    return max(position.unit for position in positions if position.samples)


def left_over(order: NDArray[np.int64], dealt: Dealt) -> NDArray[np.int64]:
    """What nobody has read of an epoch.

    Args:
        order: of its samples, those that sat out behind the others.
        dealt: how far each rank came, with each number of ranks.

    Example:
        >>> import numpy as np
        >>> left_over(np.arange(7), ((Position(2, 1, 2), Position(1, 1, 2)),))  # of two ranks
        array([3, 4, 5, 6])
    """
    for positions in dealt:
        is_read = np.zeros(len(order), dtype=bool)
        usable = len(order) // unit_of(positions) * unit_of(positions)
        for rank, position in enumerate(positions):
            is_read[rank : usable : len(positions)][: position.samples] = True
        order = order[~is_read]
    return order
