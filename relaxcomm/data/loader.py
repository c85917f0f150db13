"""DataLoaders that say when a batch is given out, which is later than when it was read."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from relaxcomm.data.clients import CLIENT, ROUND, ROUND_LEFT, ClientSampler
from relaxcomm.data.position import Position, Progress, Reading
from relaxcomm.data.sampler import ShareSampler
from relaxcomm.network.transport import Membership


def nothing(*facts: Any) -> None:
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
        self.on_begin: Callable[[], None] = nothing
        self.on_batch: Callable[[int], None] = nothing

    @property
    def epoch(self) -> int:
        """The next epoch, or with clients the next round; set it to resume."""
        return self.progress.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.progress.epoch = epoch

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # an iterator is all that loops need
        self.on_begin()
        batches, reading = self._begin()
        given_out = self._given_out(batches, reading)
        self._live = ref(given_out)
        self.progress.follow(given_out, reading)
        return given_out

    def _begin(self) -> tuple[Iterator[Any], Reading]:
        """The batches of the next epoch, or of the rest of one."""
        reading = self._reader.reading = self.progress.begin()
        # Else loading processes draw in the rest of an epoch what they have drawn at its beginning.
        read_before = [reading.position.batches] if reading.position.batches else []
        seed = np.random.SeedSequence([*self._seed, reading.epoch, *read_before]).generate_state(1)[0]
        self.generator.manual_seed(int(seed))
        batches = super().__iter__()  # takes the reading
        self._reader.reading = None
        return batches, reading

    def _given_out(self, batches: Iterator[Any], reading: Reading) -> Generator[Any, None, None]:
        raise NotImplementedError


class ShareLoader(_Loader):
    """Reads a rank's share; calls back when a batch is given out.

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
        self._shared_anew = False

    @property
    def batches_left(self) -> int:
        """Batches of the next iteration: an epoch's, or what is left of one that was not read to its end."""
        return self.sizes.batches_left

    def batches_until(self, epoch: int) -> int:
        """Batches of the iterations from the next one on that begin before an epoch."""
        return (epoch - self.epoch - 1) * len(self) + self.batches_left if self.epoch < epoch else 0

    def share_among(self, membership: Membership, *, at_once: bool) -> None:
        """Share with other ranks.

        Args:
            membership: of this rank among them.
            at_once: from the next batch on, where `progress` was told to go on; else from the next epoch on.
        """
        self.sizes.share_among(membership)
        self._shared_anew = at_once

    def _given_out(self, batches: Iterator[Any], reading: Reading) -> Generator[Any, None, None]:
        self._shared_anew = False
        while True:
            for batch in batches:
                size, reading.position = reading.drawn.popleft()
                self.on_batch(size)
                yield batch
                if self._shared_anew:
                    break
            if not self._shared_anew or self.progress.order > reading.epoch:  # the others have ended it
                break
            self._shared_anew = False
            batches, reading = self._begin()
            if (live := self._live()) is not None:
                self.progress.follow(live, reading)


class ClientLoader(_Loader):
    """Reads the batches of the clients that a rank plays; one iteration is one round.

    What clients have moved in a round that is left before its end, by `break`, cannot count in the next one:
    then that raises UsageError. At the end of a run it is given up, with a warning.

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
        self._clients = sampler
        self.on_client_begin: Callable[[int], None] = nothing
        self.on_event: Callable[[str, Mapping[str, float]], None] = nothing

    @property
    def batches_left(self) -> int:
        """Batches of the next iteration: a round's, or what is left of one that was not read to its end."""
        return len(self) - self.progress.position.batches

    def batches_until(self, epoch: int) -> int:
        """Batches of the iterations from the next one on that begin before a round."""
        begin = self.progress.order
        rounds = range(begin, begin + epoch - self.epoch)
        return sum(map(self._clients.num_batches, rounds)) - self.progress.position.batches if rounds else 0

    def share_among(self, membership: Membership, *, at_once: bool) -> None:
        """Share the clients with other ranks, from the next round on: none is shared out in its middle."""
        self._clients.share_among(membership)

    def _given_out(self, batches: Iterator[Any], reading: Reading) -> Generator[Any, None, None]:
        self._begin_round(reading)
        playing: int | None = None
        for batch in batches:
            current, reading.position = reading.drawn.popleft()
            if current.client != playing:
                playing = current.client
                self.on_client_begin(playing)
            self.on_batch(len(current.indices))
            yield batch
            if current.ends:
                playing = None
                self.on_event(CLIENT, {"samples": current.samples})
        self.progress.end()
        self.on_event(ROUND, {})

    def _begin_round(self, reading: Reading) -> None:
        """Tell of a round that was left, or of the end of a client whose last batch a checkpoint has kept."""
        begin = reading.position.batches
        if self.progress.in_round and not begin:
            self.on_event(ROUND_LEFT, {})
        self.progress.in_round = True
        last = next(islice(self._clients.round(reading.epoch), begin - 1, None), None) if begin else None
        if last is not None and last.ends:  # which is told when the next batch is asked for
            self.on_event(CLIENT, {"samples": last.samples})


class _Rounds:
    """A round's batches as a DataLoader wants them."""

    def __init__(self, sampler: ClientSampler, progress: Progress) -> None:
        self._sampler, self._progress = sampler, progress
        self.reading: Reading | None = None

    def __iter__(self) -> Iterator[list[int]]:
        assert self.reading is not None, "the loader begins the round"
        return self._read(self.reading)

    def _read(self, reading: Reading) -> Iterator[list[int]]:
        begin = reading.position.batches
        for index, batch in enumerate(self._sampler.round(reading.epoch)):
            if index >= begin:
                reading.drawn.append((batch, Position(batches=index + 1)))
                yield batch.indices

    def __len__(self) -> int:
        return self._sampler.num_batches(self._progress.order)
