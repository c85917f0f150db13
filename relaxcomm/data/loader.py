"""DataLoaders that say when a batch was consumed, which is later than when it was read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from relaxcomm.data.clients import ClientBatch, ClientSampler, RoundPlan
from relaxcomm.data.injection import Injection
from relaxcomm.data.partitions import Partition, iid, labels_of
from relaxcomm.data.sampler import ShareSampler, check_batch_size
from relaxcomm.errors import ConfigError
from relaxcomm.transport.base import Membership


def _nothing(*facts: Any) -> None:
    """What happens unless somebody listens."""


class ShareLoader(DataLoader[Any]):
    """Reads a rank's share; calls back when the next batch is asked for, so the last one is done with.

    Args:
        dataset: map-style.
        sampler: which samples; `loader.batch_sampler`.
        options: of the DataLoader.
    """

    def __init__(self, dataset: Dataset[Any], sampler: ShareSampler, **options: Any) -> None:
        super().__init__(dataset, batch_sampler=sampler, **options)
        self.sizes = sampler
        self.on_batch: Callable[[int], None] = _nothing
        self.on_epoch_end: Callable[[], None] = _nothing

    @property
    def epoch(self) -> int:
        """The next epoch; set it to resume."""
        return self.sizes.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.sizes.epoch = epoch

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # an iterator is all that loops need
        batches = super().__iter__()  # begins the sampler's iteration
        return self._followed(batches, self.sizes.drawn)

    def _followed(self, batches: Iterator[Any], drawn: deque[int]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            self.on_batch(drawn.popleft())
        self.on_epoch_end()


class ClientLoader(DataLoader[Any]):
    """Reads the batches of the clients that a rank plays; one iteration is one round.

    Args:
        dataset: map-style.
        sampler: the clients' batches.
        options: of the DataLoader.
    """

    def __init__(self, dataset: Dataset[Any], sampler: ClientSampler, **options: Any) -> None:
        self.clients = sampler
        self._drawn: deque[ClientBatch] = deque()
        super().__init__(dataset, batch_sampler=_Rounds(sampler, self._drawn), **options)
        self.on_batch: Callable[[int], None] = _nothing
        self.on_client_begin: Callable[[int], None] = _nothing
        self.on_client_end: Callable[[int], None] = _nothing
        self.on_round_end: Callable[[], None] = _nothing

    @property
    def epoch(self) -> int:
        """The next round; set it to resume."""
        return self.clients.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.clients.epoch = epoch

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # an iterator is all that loops need
        self._drawn.clear()
        playing: int | None = None
        for batch in super().__iter__():
            current = self._drawn.popleft()
            if current.client != playing:
                playing = current.client
                self.on_client_begin(playing)
            yield batch
            self.on_batch(len(current.indices))
            if current.ends:
                playing = None
                self.on_client_end(current.samples)
        self.on_round_end()


class _Rounds:
    """A round's batches as a DataLoader wants them."""

    def __init__(self, sampler: ClientSampler, drawn: deque[ClientBatch]) -> None:
        self._sampler, self._drawn = sampler, drawn

    def __iter__(self) -> Iterator[list[int]]:
        index, self._sampler.epoch = self._sampler.epoch, self._sampler.epoch + 1
        for batch in self._sampler.round(index):
            self._drawn.append(batch)
            yield batch.indices

    def __len__(self) -> int:
        return len(self._sampler)


def make_loader(
    dataset: Dataset[Any],
    *,
    batch_size: int,
    membership: Membership,
    seed: int,
    partition: Partition | None = None,
    injection: Injection | None = None,
    plan: RoundPlan | None = None,
    labels: Any = None,
    drop_last: bool = False,
    num_workers: int = 0,
    pin_memory: bool = False,
    collate_fn: Callable[[list[Any]], Any] | None = None,
) -> ShareLoader | ClientLoader:
    """A DataLoader over this rank's share of `dataset`; see `ShareSampler` for who gets what.

    `loader.epoch` is the next epoch, or with clients the next round; set it to resume.

    Args:
        dataset: map-style, with a length.
        batch_size: samples a worker and step.
        membership: this rank and the world size.
        seed: of the shuffling; the same on all ranks.
        partition: how the samples are divided over the workers, or over the clients; `iid()` if None.
        injection: what workers share in each step, or None.
        plan: of clients that the workers play in turn; one iteration is then one round.
        labels: class of every sample, `[size]`; None to look for them in the data set where needed.
        drop_last: leave out a smaller last batch.
        num_workers: loading processes of this rank.
        pin_memory: as in DataLoader.
        collate_fn: as in DataLoader.

    Raises: ConfigError for a data set without length, with too few samples or without needed labels.

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
    _check_kind("partition", partition, Partition, "by_label()")
    _check_kind("injection", injection, Injection, "Injection(alpha=0.5, beta=0.5)")
    check_batch_size(batch_size)
    chosen = partition or iid()
    classes = labels_of(dataset, labels) if chosen.needs_labels else None
    options: dict[str, Any] = {
        "num_workers": num_workers,
        "pin_memory": pin_memory,
        "collate_fn": collate_fn,
        # Its own generator: iterating must not move the user's random stream.
        "generator": torch.Generator().manual_seed(seed),
    }
    if plan is not None:
        if injection is not None or drop_last:
            raise ConfigError("clients train on whole parts of their own: leave out injection and drop_last")
        parts = chosen.parts(size, classes, plan.num_clients(membership.world_size), seed)
        clients = ClientSampler(parts, plan, batch_size=batch_size, membership=membership, seed=seed)
        return ClientLoader(dataset, clients, **options)
    sampler = ShareSampler(
        size,
        batch_size=batch_size,
        membership=membership,
        seed=seed,
        drop_last=drop_last,
        partition=chosen,
        labels=classes,
        injection=injection,
    )
    return ShareLoader(dataset, sampler, **options)


def _check_kind(name: str, value: object, kind: type, example: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise ConfigError(
            f"{name} is {value!r}; in Python give the object, such as {example}, or None; the YAML form "
            "belongs into the configuration"
        )
