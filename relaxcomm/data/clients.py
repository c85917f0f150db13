"""Federated clients: each worker plays some of them in turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from relaxcomm.data.partitions import Indices
from relaxcomm.fields.rounding import fewest
from relaxcomm.network.transport import Membership


@dataclass(frozen=True)
class RoundPlan:
    """What happens between two exchanges of a federated algorithm.

    Args:
        epochs: local epochs of each sampled client.
        fraction: of the clients that are sampled in a round, at least one.
        clients: number of clients, or None for one a worker.

    Example:
        >>> from relaxcomm.plugin import RoundPlan
        >>> plan = RoundPlan(epochs=1, fraction=0.5, clients=6)
        >>> [plan.sampled(world_size=3, round=round, seed=0) for round in range(2)]
        [[1, 3, 4], [0, 1, 4]]
    """

    epochs: int
    fraction: float
    clients: int | None

    def num_clients(self, world_size: int) -> int:
        """How many clients there are."""
        return self.clients or world_size

    def sampled(self, world_size: int, round: int, seed: int) -> list[int]:
        """The clients of a round, the same on all ranks."""
        count = self.num_clients(world_size)
        chosen = np.random.default_rng([seed, round, 7]).permutation(count)
        return sorted(chosen[: max(1, fewest(self.fraction, count))].tolist())


@dataclass(frozen=True)
class ClientBatch:
    """A batch of one client; `ends` on its last one in a round."""

    client: int
    indices: list[int]
    samples: int
    ends: bool


class ClientSampler:
    """The batches of the clients that a rank plays in a round, one client after the other.

    Client k is always played by rank k modulo the world size, so that its optimizer state stays there.

    Args:
        parts: indices of each client's samples.
        plan: epochs and sampling.
        batch_size: samples a step.
        membership: which clients to play.
        seed: of sampling and shuffling; the same on all ranks.

    Example:
        >>> import numpy
        >>> from relaxcomm.data import ClientSampler
        >>> from relaxcomm.plugin import Membership, RoundPlan
        >>> parts = [numpy.arange(3), numpy.arange(3, 5)]
        >>> plan = RoundPlan(epochs=1, fraction=1.0, clients=2)
        >>> sampler = ClientSampler(parts, plan, batch_size=2, membership=Membership(0, 1), seed=0)
        >>> [(batch.client, len(batch.indices), batch.ends) for batch in sampler.round(0)]
        [(0, 2, False), (0, 1, True), (1, 2, True)]
    """

    def __init__(
        self, parts: list[Indices], plan: RoundPlan, *, batch_size: int, membership: Membership, seed: int
    ) -> None:
        self.batch_size = batch_size
        self._parts, self._plan, self._membership, self._seed = parts, plan, membership, seed

    def round(self, index: int) -> Iterator[ClientBatch]:
        """The batches of a round."""
        rank, size = self._membership.rank, self._membership.world_size
        for client in self._plan.sampled(size, index, self._seed):
            if client % size == rank:
                yield from self._train(client, index)

    def _train(self, client: int, index: int) -> Iterator[ClientBatch]:
        part = self._parts[client]
        for epoch in range(self._plan.epochs):
            order = np.random.default_rng([self._seed, index, client, epoch]).permutation(part).tolist()
            for at in range(0, len(order), self.batch_size):
                batch = order[at : at + self.batch_size]
                ends = epoch == self._plan.epochs - 1 and at + self.batch_size >= len(order)
                yield ClientBatch(client, batch, len(part), ends)
