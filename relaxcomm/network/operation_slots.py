"""An operation of all simulated ranks: who has posted it, and who has a result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from relaxcomm.errors import CommunicationError
from relaxcomm.network.operations import Neighbors, Operation
from relaxcomm.network.reductions import Objects, combine


@dataclass
class Slot:
    """The n-th operation of every rank; a rank's result is there when those it hears from have posted."""

    posts: dict[int, Operation | Objects] = field(default_factory=dict)
    first: tuple[int, str] | None = None  # who has posted first, and what
    sent: dict[int, dict[int, Tensor]] = field(default_factory=dict)  # by each, to each of its neighbours
    awaits: dict[int, int] = field(default_factory=dict)  # of how many neighbours each still waits to hear
    awaited_by: dict[int, list[int]] = field(default_factory=dict)  # who waits for one that has not posted
    arrives_at: dict[int, float] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)
    ready_at: dict[int, float] = field(default_factory=dict)

    def complete(self, rank: int, size: int) -> Iterator[tuple[int, Any]]:
        """The results of those whom the post of a rank was still missing; none looks at all others.

        Args:
            rank: that has posted.
            size: how many ranks there are.
        """
        operation = self.posts[rank]
        if isinstance(operation, Neighbors):
            # Before a slow neighbour has posted, this rank may have gone on and overwritten what it sent.
            self.sent[rank] = {peer: tensor.clone() for peer, tensor in operation.sends.items()}
            missing = [peer for peer in operation.receives if peer not in self.posts]
            self.awaits[rank] = len(missing) + 1  # itself
            for peer in missing:
                self.awaited_by.setdefault(peer, []).append(rank)
            for other in (rank, *self.awaited_by.pop(rank, ())):
                self.awaits[other] -= 1
                if not self.awaits[other]:
                    yield other, self._heard_by(other)
        elif len(self.posts) == size:
            ready = self._last_arrival(set(self.posts))
            for other, result in combine(self.posts).items():
                self.ready_at[other] = ready
                yield other, result

    def _heard_by(self, rank: int) -> dict[int, Any]:
        """What a rank's neighbours have sent to it."""
        operation = self.posts[rank]
        assert isinstance(operation, Neighbors)
        assert self.first is not None
        for peer in operation.receives:
            if rank not in self.sent[peer]:
                raise CommunicationError(
                    f"{self.first[1]}: rank {rank} waits for rank {peer}, which sent it nothing; a rank that "
                    "another names in `receives` has to name it in `sends`"
                )
        self.ready_at[rank] = self._last_arrival({rank, *operation.receives})
        return {peer: self.sent[peer].pop(rank) for peer in operation.receives}

    def _last_arrival(self, ranks: set[int]) -> float:
        return max(self.arrives_at[rank] for rank in ranks)
