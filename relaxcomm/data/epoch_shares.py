"""Which samples of an epoch are each rank's, and in which order: see `ShareSampler`."""

from __future__ import annotations

import numpy as np

from relaxcomm.data.partition_parts import parts_of
from relaxcomm.data.partitions import Indices, Partition
from relaxcomm.data.position import Dealt, left_over, unit_of
from relaxcomm.network.transport import Membership


class EpochShares:
    """Deals out the samples of each epoch; a pure function of (seed, epoch, rank, world size).

    Args:
        size: samples in the data set.
        membership: the ranks among whom it is shared.
        multiple: of which a rank's samples of an epoch are whole multiples.
        seed: of the shuffling.
        partition: how the samples are divided.
        labels: class of every sample, `[size]`, for partitions that need it.
    """

    def __init__(
        self,
        size: int,
        *,
        membership: Membership,
        multiple: int,
        seed: int,
        partition: Partition,
        labels: Indices | None,
    ) -> None:
        self._size, self._multiple, self._seed = size, multiple, seed
        self._partition, self._labels = partition, labels
        self._fixed_order = self._shuffled(np.arange(size), 0)
        self.share_among(membership)

    def share_among(self, membership: Membership) -> None:
        """Share with these ranks from now on."""
        self.membership = membership
        reshuffles, size = self._partition.reshuffles, membership.world_size
        self._parts: list[Indices] = (
            [] if reshuffles else parts_of(self._partition, self._size, self._labels, size, self._seed)
        )

    @property
    def unit(self) -> int:
        """Samples of which an epoch has whole multiples."""
        return self.membership.world_size * self._multiple

    @property
    def per_epoch(self) -> int:
        """Samples of a rank in a whole epoch."""
        return self._per_epoch(self.unit)

    def of(self, epoch: int, rank: int, dealt: Dealt, unit: int) -> list[int]:
        """Indices of a rank's samples in an epoch, in order.

        Args:
            epoch: from 0.
            rank: whose.
            dealt: what other numbers of ranks have read of it.
            unit: samples that are dealt out together; `self.unit`, or what it was when the epoch began.
        """
        if self._parts:
            read, per_epoch = self._read_before(dealt), self._per_epoch(unit)
            return self._stream(rank, epoch * per_epoch + read, per_epoch - read)
        order, sit_out = self._dealt_out(epoch, next(map(unit_of, dealt), unit))
        if dealt:
            left = left_over(np.concatenate((order, sit_out)), dealt)
            order = left[: len(left) // unit * unit]
        mine: list[int] = order[rank :: self.membership.world_size].tolist()
        return mine

    def _per_epoch(self, unit: int) -> int:
        return self._size // unit * unit // self.membership.world_size

    def _dealt_out(self, epoch: int, unit: int) -> tuple[Indices, Indices]:
        """The samples of an epoch in order, and those that sit out."""
        remainder = self._size % unit
        turned = np.roll(self._fixed_order, -epoch * remainder)
        return self._shuffled(turned[remainder:], epoch + 1), turned[:remainder]

    def _read_before(self, dealt: Dealt) -> int:
        """How much of an epoch other numbers of ranks have read, as samples of each of these."""
        shares = [min(one.samples, self._size // len(positions)) for positions in dealt for one in positions]
        return min(self.per_epoch, sum(shares) // self.membership.world_size)

    def _stream(self, rank: int, start: int, count: int) -> list[int]:
        """Samples `start` to `start + count` of a rank's part read again and again."""
        part, found = self._parts[rank], []
        for turn in range(start // len(part), (start + count - 1) // len(part) + 1):
            order = part if self._partition.keeps_order else self._shuffled(part, turn + 1, rank)
            begin = turn * len(part)
            found.append(order[max(0, start - begin) : start + count - begin])
        indices: list[int] = np.concatenate(found).tolist()
        return indices

    def _shuffled(self, indices: Indices, *stream: int) -> Indices:
        return np.random.default_rng([self._seed, *stream]).permutation(indices)
