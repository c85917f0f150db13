"""What an exchange declares of its operations, one by one, and of those that it waits for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TypeAlias

from relaxcomm.errors import PluginError
from relaxcomm.fields.validation import shown
from relaxcomm.network.operations import OPERATIONS, Neighbors, Operation
from relaxcomm.network.traffic import sent_share
from relaxcomm.topology import Topology

Pairs: TypeAlias = Mapping[tuple[int, int], float]
"""Who sends to whom, and how much, in proportion."""
_KINDS = ", ".join(kind.__name__ for kind in OPERATIONS)


@dataclass(frozen=True)
class Stage:
    """One operation of an exchange, as plans count it.

    Args:
        kind: of operation.
        share: how much of a message its tensor is: 1 / N of one of N parts. With `pairs`, how much of one a
            rank sends, on average over the ranks.
        pairs: makes `{(rank, other): part}`, who sends to whom, and how much, in proportion; None where the
            kind says so: all to all, or, of `Neighbors`, each to those that listen in the graph. Of a
            `Request`, who asks whom.
        answer: of a `Request`, how much is answered for as much that is asked: 1 for all entries of it, in
            full precision.

    Example:
        >>> from relaxcomm.plugin import AllGather, AllToAll, Neighbors, Stage
        >>> from relaxcomm.primitives import ring
        >>> stages = Stage(AllToAll), Stage(AllGather, share=1 / 4), Stage(Neighbors)
        >>> [one.sent(4, ring()) for one in stages]  # messages
        [0.75, 0.75, 2.0]
    """

    kind: type[Operation]
    share: float = 1.0
    pairs: Callable[[], Pairs] | None = None
    answer: float = 1.0

    def __post_init__(self) -> None:
        for name, holds, allowed in (
            ("kind", self.kind in OPERATIONS, f"give one of {_KINDS}"),
            ("share", is_size(self.share), "give a number of messages"),
            ("pairs", self.pairs is None or callable(self.pairs), "give a function that makes them"),
            ("answer", is_size(self.answer), "give a number"),
        ):
            if not holds:
                raise PluginError(f"the {name} of a Stage is {shown(getattr(self, name))}; {allowed}")

    def sent(self, world_size: int, graph: Topology) -> float:
        """What a rank sends, in messages, on average over the ranks.

        Args:
            world_size: number of ranks.
            graph: over which neighbours exchange.
        """
        if world_size == 1:
            return 0.0
        if self.pairs is not None:
            return self.share
        if self.kind is Neighbors:
            return self.share * graph.links(world_size) / world_size
        return self.share * sent_share(self.kind, world_size)


def is_size(value: object) -> bool:
    """Whether it is a number, 0 or more, and finite."""
    return isinstance(value, Real) and 0 <= float(value) < math.inf


@dataclass(frozen=True)
class Awaited:
    """Whom a rank waits for that exchanges when it likes.

    Args:
        workers: so many must have sent, 1 for this rank alone.
        staleness: how many exchanges ago that was which they must have sent.
        grace_seconds: how long others are waited for then.

    Example:
        >>> from relaxcomm.primitives import quorum_average, server
        >>> quorum_average(quorum=3).awaited(8).workers, server(staleness=2).awaited(8)
        (3, Awaited(workers=8, staleness=2, grace_seconds=0.0))
    """

    workers: int
    staleness: int = 0
    grace_seconds: float = 0.0
