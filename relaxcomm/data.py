"""Sharing a data set out over the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from relaxcomm.errors import ConfigError
from relaxcomm.transport.base import Membership


class ShareSampler(Sampler[list[int]]):
    """Batches of indices for one rank; every rank gets the same number of batches of the same sizes.

    In each epoch the data set is shuffled anew and dealt out, so no sample comes twice in an epoch, on
    whatever rank. When the size is not a multiple of the world size (with `drop_last`: of world size
    times batch size) the remainder r sits out the epoch. Who sits out rotates through the data set:
    epoch e leaves out places e·r to (e+1)·r - 1 of one fixed shuffled order, taken round. Since
    r ≤ size / 2, any two consecutive epochs together hold every sample, and all samples sit out equally
    often in the long run.

    The order is a pure function of (seed, epoch, rank, world size). The epoch advances by itself each
    time the sampler is iterated; set `epoch` to resume.

    Args:
        size: samples in the data set.
        batch_size: samples a worker and step; without `drop_last` the epoch's last batch may be smaller.
        membership: which share to take.
        seed: of the shuffling; the same on all ranks.
        drop_last: leave out a smaller last batch.

    Raises: ConfigError if the data set is too small to give every rank one batch.

    Example:
        >>> shares = [ShareSampler(5, batch_size=2, membership=Membership(r, 2), seed=0) for r in (0, 1)]
        >>> [[len(batch) for batch in share] for share in shares]
        [[2], [2]]
    """

    def __init__(
        self, size: int, *, batch_size: int, membership: Membership, seed: int, drop_last: bool = False
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}; it must be at least 1")
        self._unit = membership.world_size * (batch_size if drop_last else 1)
        if size < self._unit:
            raise ConfigError(
                f"the data set has {size} samples, too few for {membership.world_size} workers"
                + (f" with full batches of {batch_size}; lower the batch size" if drop_last else "")
                + "; use fewer workers or more data"
            )
        self.epoch = 0
        self.batch_size = batch_size
        self._size = size
        self._membership = membership
        self._seed = seed
        self._fixed_order = self._shuffled(np.arange(size), 0)

    def share(self, epoch: int) -> list[int]:
        """Indices of this rank's samples in `epoch`, in order."""
        remainder = self._size % self._unit
        turned = np.roll(self._fixed_order, -epoch * remainder)
        kept = self._shuffled(turned[remainder:], epoch + 1)
        mine: list[int] = kept[self._membership.rank :: self._membership.world_size].tolist()
        return mine

    def _shuffled(self, indices: np.ndarray[Any, Any], stream: int) -> np.ndarray[Any, Any]:
        return np.random.default_rng([self._seed, stream]).permutation(indices)

    def __iter__(self) -> Iterator[list[int]]:
        share = self.share(self.epoch)
        self.epoch += 1
        return iter([share[at : at + self.batch_size] for at in range(0, len(share), self.batch_size)])

    def __len__(self) -> int:
        samples = self._size // self._unit * self._unit // self._membership.world_size
        return -(-samples // self.batch_size)


def make_loader(
    dataset: Dataset[Any],
    *,
    batch_size: int,
    membership: Membership,
    seed: int,
    drop_last: bool = False,
    num_workers: int = 0,
    pin_memory: bool = False,
    collate_fn: Callable[[list[Any]], Any] | None = None,
) -> DataLoader[Any]:
    """A DataLoader over this rank's share of `dataset`; see `ShareSampler` for who gets what.

    Its sampler is `loader.batch_sampler`; `loader.batch_sampler.epoch` is the next epoch.

    Args:
        dataset: map-style, with a length.
        batch_size: samples a worker and step.
        membership: this rank and the world size.
        seed: of the shuffling; the same on all ranks.
        drop_last: leave out a smaller last batch.
        num_workers: loading processes of this rank.
        pin_memory: as in DataLoader.
        collate_fn: as in DataLoader.

    Raises: ConfigError for a data set without length or with too few samples.

    Example:
        >>> loader = make_loader(range(6), batch_size=2, membership=Membership(0, 1), seed=0)
        >>> sorted(int(x) for batch in loader for x in batch)
        [0, 1, 2, 3, 4, 5]
    """
    try:
        size = len(dataset)  # type: ignore[arg-type]  # Dataset does not declare it; map-style ones have it
    except TypeError:
        raise ConfigError(
            f"{type(dataset).__name__} has no length, so it cannot be shared out; use a map-style data set, "
            "or your own loader, which gives every rank its part"
        ) from None
    sampler = ShareSampler(size, batch_size=batch_size, membership=membership, seed=seed, drop_last=drop_last)
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=num_workers,
        pin_memory=pin_memory,
        collate_fn=collate_fn,
        # Its own generator: iterating must not move the user's random stream.
        generator=torch.Generator().manual_seed(seed),
    )
