"""DataLoaders that say when a batch was consumed, which is later than when it was read."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from relaxcomm.data.clients import ClientSampler, RoundPlan
from relaxcomm.data.injection import Injection
from relaxcomm.data.loader_options import check_map_style, check_options
from relaxcomm.data.partitions import Partition, iid, labels_of
from relaxcomm.data.position import Place, Progress, Reading
from relaxcomm.data.sampler import ShareSampler, check_batch_size
from relaxcomm.errors import ConfigError
from relaxcomm.network.transport import Membership


def _nothing(*facts: Any) -> None:
    """What happens unless somebody listens."""


class _Loader(DataLoader[Any]):
    """Begins epochs one after the other, and keeps how much of one was given out.

    Args:
        dataset: map-style.
        sampler: gives batches of what is in `reading`.
        progress: which epoch is next.
        seed: of what loading processes draw; it differs between ranks and, from it, between epochs.
        options: of the DataLoader.
    """

    def __init__(
        self, dataset: Dataset[Any], sampler: Any, progress: Progress, seed: Sequence[int], **options: Any
    ) -> None:
        # Its own generator: iterating must not move the user's random stream.
        super().__init__(dataset, batch_sampler=sampler, generator=torch.Generator(), **options)
        self.progress, self._seed, self._reader = progress, tuple(seed), sampler
        self.on_batch: Callable[[int], None] = _nothing

    @property
    def epoch(self) -> int:
        """The next epoch, or with clients the next round; set it to resume."""
        return self.progress.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.progress.epoch = epoch

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # an iterator is all that loops need
        reading = self._reader.reading = self.progress.begin()
        seed = np.random.SeedSequence([*self._seed, reading.epoch]).generate_state(1)[0]
        self.generator.manual_seed(int(seed))
        batches = super().__iter__()  # takes the reading
        self._reader.reading = None
        given_out = self._given_out(batches, reading)
        self.progress.follow(given_out, reading)
        return given_out

    def _given_out(self, batches: Iterator[Any], reading: Reading) -> Generator[Any, None, None]:
        raise NotImplementedError


class ShareLoader(_Loader):
    """Reads a rank's share; calls back when the next batch is asked for, so the last one is done with.

    Args:
        dataset: map-style.
        sampler: which samples; `loader.batch_sampler`.
        seed: of what loading processes draw.
        options: of the DataLoader.

    Example:
        >>> import torch
        >>> from relaxcomm import attach
        >>> model = torch.nn.Linear(1, 1)
        >>> with attach(model, torch.optim.SGD(model.parameters()), "bsp") as engine:
        ...     loader = engine.loader(range(5), batch_size=2)
        ...     print(len(loader), [len(batch) for batch in loader], loader.epoch)
        3 [2, 2, 1] 1
    """

    def __init__(
        self, dataset: Dataset[Any], sampler: ShareSampler, seed: Sequence[int], **options: Any
    ) -> None:
        super().__init__(dataset, sampler, sampler.progress, seed, **options)
        self.sizes = sampler
        self.on_given: Callable[[int], None] = _nothing
        self.on_epoch_end: Callable[[], None] = _nothing

    def _given_out(self, batches: Iterator[Any], reading: Reading) -> Generator[Any, None, None]:
        for batch in batches:
            size, reading.place = reading.drawn.popleft()
            self.on_given(size)
            yield batch
            self.on_batch(size)
        self.on_epoch_end()


class ClientLoader(_Loader):
    """Reads the batches of the clients that a rank plays; one iteration is one round.

    Args:
        dataset: map-style.
        sampler: the clients' batches.
        progress: which round is next.
        seed: of what loading processes draw.
        options: of the DataLoader.

    Example:
        >>> import torch
        >>> from relaxcomm import attach
        >>> model = torch.nn.Linear(1, 1)
        >>> config = {"algorithm": {"name": "fedavg", "epochs": 2, "clients": 2, "fraction": 0.5}}
        >>> with attach(model, torch.optim.SGD(model.parameters()), config) as engine:
        ...     loader = engine.loader(range(6), batch_size=2)
        ...     print(type(loader).__name__, [len(batch) for batch in loader])
        ClientLoader [2, 1, 2, 1]
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        sampler: ClientSampler,
        progress: Progress,
        seed: Sequence[int],
        **options: Any,
    ) -> None:
        super().__init__(dataset, _Rounds(sampler, progress), progress, seed, **options)
        self.on_client_begin: Callable[[int], None] = _nothing
        self.on_client_end: Callable[[int], None] = _nothing
        self.on_round_end: Callable[[], None] = _nothing

    def _given_out(self, batches: Iterator[Any], reading: Reading) -> Generator[Any, None, None]:
        playing: int | None = None
        for batch in batches:
            current, reading.place = reading.drawn.popleft()
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

    def __init__(self, sampler: ClientSampler, progress: Progress) -> None:
        self._sampler, self._progress = sampler, progress
        self.reading: Reading | None = None

    def __iter__(self) -> Iterator[list[int]]:
        assert self.reading is not None, "the loader begins the round"
        return self._read(self.reading)

    def _read(self, reading: Reading) -> Iterator[list[int]]:
        begin = reading.place.batches
        for index, batch in enumerate(self._sampler.round(reading.epoch)):
            if index >= begin:
                reading.drawn.append((batch, Place(batches=index + 1)))
                yield batch.indices

    def __len__(self) -> int:
        return sum(1 for _ in self._sampler.round(self._progress.epoch))


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
    progress: Progress | None = None,
    drop_last: bool = False,
    num_workers: int = 0,
    pin_memory: bool = False,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    worker_init_fn: Callable[[int], None] | None = None,
    prefetch_factor: int | None = None,
    persistent_workers: bool = False,
    multiprocessing_context: Any = None,
    timeout: float = 0,
    **others: Any,
) -> ShareLoader | ClientLoader:
    """A DataLoader over this rank's share of `dataset`; see `ShareSampler` for who gets what.

    `loader.epoch` is the next epoch, or with clients the next round; set it to resume. What loading
    processes draw at random differs between ranks and between epochs.

    Args:
        dataset: map-style, with a length.
        batch_size: samples a worker and step.
        membership: this rank and the world size.
        seed: of the shuffling; the same on all ranks.
        partition: how the samples are divided over the workers, or over the clients; `iid()` if None.
        injection: what workers share in each step, or None.
        plan: of clients that the workers play in turn; one iteration is then one round.
        labels: class of every sample, `[size]`; None to look for them in the data set where needed.
        progress: which epoch is next; None to begin with the first.
        drop_last: leave out a smaller last batch.
        num_workers: loading processes of this rank.
        pin_memory: as in DataLoader, as are the rest.
        collate_fn: makes a batch of samples.
        worker_init_fn: called in each loading process.
        prefetch_factor: batches that each loading process reads ahead.
        persistent_workers: keep the loading processes from one epoch to the next.
        multiprocessing_context: how they are started.
        timeout: the longest that a batch may take, in seconds; 0 for no limit.
        others: none; an error says why.

    Raises: ConfigError for a data set without length, with too few samples or without needed labels, or an
        option that cannot be honoured.

    Example:
        >>> from relaxcomm.data import make_loader
        >>> from relaxcomm.plugin import Membership
        >>> loader = make_loader(range(6), batch_size=2, membership=Membership(0, 1), seed=0)
        >>> sorted(int(x) for batch in loader for x in batch)
        [0, 1, 2, 3, 4, 5]
    """
    check_options(others, make_loader)
    size = check_map_style(dataset)
    _check_kind("partition", partition, Partition, "by_label()")
    _check_kind("injection", injection, Injection, "Injection(alpha=0.5, beta=0.5)")
    check_batch_size(batch_size)
    chosen, progress = partition or iid(), progress or Progress()
    classes = labels_of(dataset, labels) if chosen.needs_labels else None
    options: dict[str, Any] = {
        "seed": (seed, membership.rank),
        "num_workers": num_workers,
        "pin_memory": pin_memory,
        "collate_fn": collate_fn,
        "worker_init_fn": worker_init_fn,
        "prefetch_factor": prefetch_factor,
        "persistent_workers": persistent_workers,
        "multiprocessing_context": multiprocessing_context,
        "timeout": timeout,
    }
    if plan is not None:
        if injection is not None or drop_last:
            raise ConfigError("clients train on whole parts of their own: leave out injection and drop_last")
        parts = chosen.parts(size, classes, plan.num_clients(membership.world_size), seed)
        clients = ClientSampler(parts, plan, batch_size=batch_size, membership=membership, seed=seed)
        return ClientLoader(dataset, clients, progress, **options)
    sampler = ShareSampler(
        size,
        batch_size=batch_size,
        membership=membership,
        seed=seed,
        drop_last=drop_last,
        partition=chosen,
        labels=classes,
        injection=injection,
        progress=progress,
    )
    return ShareLoader(dataset, sampler, **options)


def _check_kind(name: str, value: object, kind: type, example: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise ConfigError(
            f"{name} is {value!r}; in Python give the object, such as {example}, or None; the YAML form "
            "belongs into the configuration"
        )
