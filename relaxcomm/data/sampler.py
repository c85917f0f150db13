"""Which samples each rank reads, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral

from torch.utils.data import Sampler

from relaxcomm.data.epoch_shares import EpochShares
from relaxcomm.data.injection import Injection
from relaxcomm.data.partitions import Indices, Partition, iid
from relaxcomm.data.position import Position, Progress, Reading
from relaxcomm.errors import ConfigError
from relaxcomm.fields.validation import shown
from relaxcomm.network.transport import Membership


class ShareSampler(Sampler[list[int]]):
    """Batches of indices for one rank; every rank gets the same number of batches of the same sizes.

    With the partition `iid`, the data set is shuffled anew in each epoch and dealt out, so no sample
    comes twice in an epoch, on whatever rank. When the size is not a multiple of the world size (with
    `drop_last`: of world size times batch size) the remainder r sits out the epoch. Who sits out
    rotates through the data set: epoch e leaves out positions e·r to (e+1)·r - 1 of one fixed shuffled
    order, taken round. Since r ≤ size / 2, any two consecutive epochs together hold every sample, and
    all samples sit out equally often in the long run.

    With the others each rank has a part of its own. An epoch is `size / N` samples for every rank,
    whatever the size of its part: a smaller part is read more often, a larger one over more epochs,
    shuffled anew each time it begins (with `seldp` in the same order each time).

    When there are other ranks in the middle of an epoch, they read what is left of it: with `iid` it is dealt
    out among them, those that had sat out come last, and again a remainder sits out. With the others
    parts are made anew, and each rank reads on as far into its own as ranks were on average. Where this
    rest would end in a batch of one sample a worker, on which BatchNorm raises, that sample joins the batch
    before; if there is none, it sits out, too.

    The order is a pure function of (seed, epoch, rank, world size). The epoch advances by itself each
    time the sampler is iterated; set `epoch` to resume. `batch_size` may be changed at any time, the same
    on all ranks: it holds from the next batch that is drawn. An epoch that a checkpoint left in its middle
    keeps its order also where it is made with another one.

    Args:
        size: samples in the data set.
        batch_size: samples a worker and step; without `drop_last` the epoch's last batch may be smaller.
        membership: which share to take.
        seed: of the shuffling; the same on all ranks.
        drop_last: leave out a smaller last batch.
        partition: how the samples are divided.
        labels: class of every sample, `[size]`, for partitions that need it.
        injection: samples that workers share with the others in each batch, or None.
        progress: which epoch is next; None to begin with the first.

    Raises: ConfigError if the data set is too small to give every rank one batch, or the partition does not.

    Example:
        >>> from relaxcomm.data import ShareSampler
        >>> from relaxcomm.plugin import Membership
        >>> shares = [ShareSampler(5, batch_size=2, membership=Membership(r, 2), seed=0) for r in (0, 1)]
        >>> [[len(batch) for batch in share] for share in shares]
        [[2], [2]]
    """

    def __init__(
        self,
        size: int,
        *,
        batch_size: int,
        membership: Membership,
        seed: int,
        drop_last: bool = False,
        partition: Partition | None = None,
        labels: Indices | None = None,
        injection: Injection | None = None,
        progress: Progress | None = None,
    ) -> None:
        check_batch_size(batch_size)
        multiple = batch_size if drop_last else 1
        if size < membership.world_size * multiple:
            raise ConfigError(
                f"the data set has {size} samples, too few for {membership.world_size} workers"
                + (f" with full batches of {batch_size}; lower the batch size" if drop_last else "")
                + "; use fewer workers or more data"
            )
        self.progress = progress or Progress()
        self.reading: Reading | None = None  # that a loader has begun
        self._drop_last, self._injection, self._seed = drop_last, injection, seed
        self._shares = EpochShares(
            size,
            membership=membership,
            multiple=multiple,
            seed=seed,
            partition=partition or iid(),
            labels=labels,
        )
        self.batch_size = batch_size

    @property
    def epoch(self) -> int:
        """The next epoch; set it to resume."""
        return self.progress.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.progress.epoch = epoch

    @property
    def batch_size(self) -> int:
        """Samples a worker and step, from the next batch that is drawn.

        Raises: ConfigError when it is set below 1 or, with `drop_last`, to more than a whole epoch.
        """
        return self._batch_size

    @batch_size.setter
    def batch_size(self, batch_size: int) -> None:
        check_batch_size(batch_size)
        if self._drop_last and batch_size > self._shares.per_epoch:
            raise ConfigError(
                f"batch_size is {batch_size}, but an epoch has {self._shares.per_epoch} samples a worker, so "
                "drop_last would leave out all of them; use a smaller batch, or drop_last=False"
            )
        self._batch_size = batch_size

    def resize(self, batch_size: float) -> None:
        """Change the batch size from the next batch that is drawn, with `drop_last` to an epoch at most."""
        self.batch_size = min(int(batch_size), self._shares.per_epoch) if self._drop_last else int(batch_size)

    def share(self, epoch: int) -> list[int]:
        """Indices of this rank's samples in `epoch`, in order."""
        begin = self.progress.position if epoch == self.progress.order else Position()
        return self._share(self._shares.membership.rank, epoch, self._unit(epoch, begin))

    def _share(self, rank: int, epoch: int, unit: int) -> list[int]:
        return self._shares.of(epoch, rank, self.progress.dealt(epoch), unit)

    def _unit(self, epoch: int, begin: Position) -> int:
        """How many samples are dealt out together in an epoch that is read from a position on."""
        is_dealt_anew = not begin.unit or self.progress.dealt(epoch)
        return self._shares.unit if is_dealt_anew else begin.unit

    def share_among(self, membership: Membership) -> None:
        """Share with other ranks, in iterations that begin from now on."""
        self._shares.share_among(membership)

    def __iter__(self) -> Iterator[list[int]]:
        return self._read(self.reading)

    def _read(self, begun: Reading | None) -> Iterator[list[int]]:
        reading = begun or self.progress.begin()  # not before it is drawn from: DataLoaders ask twice
        for batch, position in self._batches(reading):
            reading.drawn.append((len(batch), position))
            yield batch

    def _batches(self, reading: Reading) -> Iterator[tuple[list[int], Position]]:
        """The batches from a position in an epoch on, each with the position behind it."""
        injection, rank, epoch = self._injection, self._shares.membership.rank, reading.epoch
        readers = range(self._shares.membership.world_size) if injection else [rank]
        unit = self._unit(epoch, reading.position)
        shares = {reader: self._share(reader, epoch, unit) for reader in readers}
        (at, step, _), end = reading.position, len(shares[rank])
        is_rest = bool(self.progress.dealt(epoch))
        while local := self._next_samples(end - at, is_rest=is_rest):
            batch = shares[rank][at : at + local]
            if injection:
                batch += injection.received(shares, rank, at, local, [self._seed, epoch, step])
            at, step = at + local, step + 1
            reading.are_all_drawn = not self._next_samples(end - at, is_rest=is_rest)
            yield batch, Position(at, step, unit)

    def _next_samples(self, left: int, *, is_rest: bool) -> int:
        """Samples of the next batch that are from this rank's share; 0 if none comes.

        Args:
            left: of the share.
            is_rest: whether it is a share of what other numbers of ranks have left of an epoch.
        """
        local = self._local_samples
        if self._drop_last:
            return local if left >= local else 0
        if is_rest and local > 1 and left in (1, local + 1):  # no batch is one sample alone
            return left if left > 1 else 0
        return local if left > 0 else 0

    @property
    def _local_samples(self) -> int:
        """Samples of a batch that are from this rank's share."""
        if self._injection is None:
            return self.batch_size
        return self._injection.local_samples(self.batch_size, self._shares.membership.world_size)

    def __len__(self) -> int:
        return self._num_batches(self._shares.per_epoch)

    @property
    def batches_left(self) -> int:
        """Batches of the next iteration: an epoch's, or what is left of one that was not read to its end."""
        epoch, position = self.progress.order, self.progress.position
        is_rest = bool(self.progress.dealt(epoch))
        if not (position.samples or is_rest):
            return len(self)
        return self._num_batches(len(self.share(epoch)) - position.samples, is_rest=is_rest)

    def _num_batches(self, samples: int, *, is_rest: bool = False) -> int:
        whole, last = divmod(max(0, samples), self._local_samples)
        return whole + bool(self._next_samples(last, is_rest=is_rest))


def check_batch_size(batch_size: object) -> None:
    """Raises: ConfigError for a batch without samples."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, Integral) or batch_size < 1:
        raise ConfigError(f"batch_size is {shown(batch_size)}; it must be a whole number of at least 1")
