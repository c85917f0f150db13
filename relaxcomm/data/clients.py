"""Federated clients: each worker plays some of them in turn."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from relaxcomm.data.partition_parts import parts_of
from relaxcomm.data.partitions import Indices, Partition, iid
from relaxcomm.errors import ConfigError
from relaxcomm.fields.frozen import Count, Share, Steps, frozen
from relaxcomm.fields.rounding import fewest
from relaxcomm.network.transport import ALONE, Membership

CLIENT, ROUND, ROUND_LEFT, ROUND_GIVEN_UP = "client", "round", "round left", "round given up"
"""What loaders of clients tell of: one has trained, all of a round have, the next round begins or the run
ends, and this one was left before its end."""


@frozen
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

    epochs: Steps
    fraction: Share
    clients: Count | None

    def num_clients(self, world_size: int) -> int:
        """How many clients there are."""
        return self.clients or world_size

    def sampled(self, world_size: int, round: int, seed: int) -> list[int]:
        """The clients of a round, the same on all ranks."""
        chosen = np.random.default_rng([seed, round, 7]).permutation(self.num_clients(world_size))
        return sorted(chosen[: self._num_sampled(world_size)].tolist())

    def mean_steps(self, world_size: int, epoch_steps: int) -> float:
        """Steps of a worker in a round, on average.

        Args:
            world_size: number of workers.
            epoch_steps: of a client in a local epoch.

        Example:
            >>> RoundPlan(epochs=2, fraction=0.5, clients=6).mean_steps(world_size=2, epoch_steps=10)
            30.0
        """
        return self.epochs * epoch_steps * self._num_sampled(world_size) / world_size

    def _num_sampled(self, world_size: int) -> int:
        return max(1, fewest(self.fraction, self.num_clients(world_size)))


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
        size: samples in the data set.
        plan: epochs and sampling.
        batch_size: samples a step.
        membership: which clients to play.
        seed: of sampling and shuffling; the same on all ranks.
        shard: this rank among those that hold a replica together, who take equal parts of each batch, which
            is so many times as large.
        partition: how the samples are divided over the clients; `iid()` if None.
        labels: class of every sample, `[size]`, for partitions that need it.

    Example:
        >>> from relaxcomm.data import ClientSampler
        >>> from relaxcomm.plugin import Membership, RoundPlan
        >>> plan = RoundPlan(epochs=1, fraction=1.0, clients=2)
        >>> sampler = ClientSampler(5, plan, batch_size=2, membership=Membership(0, 1), seed=0)
        >>> [(batch.client, len(batch.indices), batch.ends) for batch in sampler.round(0)]
        [(0, 2, False), (0, 1, True), (1, 2, True)]
    """

    def __init__(
        self,
        size: int,
        plan: RoundPlan,
        *,
        batch_size: int,
        membership: Membership,
        seed: int,
        shard: Membership = ALONE,
        partition: Partition | None = None,
        labels: Indices | None = None,
    ) -> None:
        self.batch_size, self._shard = batch_size, shard
        self._size, self._plan, self._seed = size, plan, seed
        self._partition, self._labels = partition or iid(), labels
        self.share_among(membership)

    def share_among(self, membership: Membership) -> None:
        """Share the clients with other ranks, in rounds that begin from now on."""
        count = self._plan.num_clients(membership.world_size)
        self._membership = membership
        self._parts = parts_of(self._partition, self._size, self._labels, count, self._seed)

    def round(self, index: int) -> Iterator[ClientBatch]:
        """The batches of a round."""
        parts = self._parts
        for client in self._played(index):
            yield from self._train(client, index, parts[client])

    def num_batches(self, index: int) -> int:
        """How many batches a round has."""
        shares = [len(self._parts[client]) // self._shard.world_size for client in self._played(index)]
        return self._plan.epochs * sum(math.ceil(share / self.batch_size) for share in shares)

    def _played(self, index: int) -> list[int]:
        """The clients of a round that this rank plays."""
        rank, size = self._membership.rank, self._membership.world_size
        return [client for client in self._plan.sampled(size, index, self._seed) if client % size == rank]

    def _train(self, client: int, index: int, part: Indices) -> Iterator[ClientBatch]:
        """The batches of a client in a round, of which each shard of a replica has its part."""
        shards = self._shard.world_size
        if len(part) < shards:
            raise ConfigError(
                f"client {client} has {len(part)} samples, too few for the {shards} shards of a replica"
            )
        for epoch in range(self._plan.epochs):
            whole = np.random.default_rng([self._seed, index, client, epoch]).permutation(part)
            order = whole[: len(part) // shards * shards][self._shard.rank :: shards].tolist()
            for at in range(0, len(order), self.batch_size):
                batch = order[at : at + self.batch_size]
                ends = epoch == self._plan.epochs - 1 and at + self.batch_size >= len(order)
                yield ClientBatch(client, batch, len(part), ends)
