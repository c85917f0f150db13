"""What the engine learns from the loader, and what it tells it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.data import ClientLoader, ShareLoader
from relaxcomm.engine.loaders.data_sets import DataSets
from relaxcomm.engine.loaders.known_data import Data, finder, kind_of
from relaxcomm.engine.loaders.loader_events import Event, connect, disconnect
from relaxcomm.errors import UsageError
from relaxcomm.network.transport import Membership
from relaxcomm.roles.controller import BATCH_SIZE
from relaxcomm.step.bound import Bound


class Loaders:
    """Lets loaders go on where the last one for the same data (see `DataSets`) stopped, and follows them.

    Args:
        event: told when a client and a round have ended.
        bound: tells of the algorithm that runs, among the present ranks.
    """

    def __init__(self, event: Event, bound: Callable[[], Bound]) -> None:
        self._event, self._bound = event, bound
        self._membership = bound().world.membership  # whose share is read
        self._data_sets = DataSets()
        self._followed: Data | None = None
        self._live: weakref.WeakSet[ShareLoader | ClientLoader] = weakref.WeakSet()
        self._unread: weakref.WeakSet[ShareLoader | ClientLoader] = weakref.WeakSet()
        """Loaders that may turn out to follow another one when they are read."""
        self._later: list[_Later] = []
        self._is_over = False

    def find(self, dataset: Any, batch_size: int, options: Mapping[str, Any]) -> Data:
        """A data set that is to be read by another loader, or for the first time.

        Raises: UsageError for loading processes that would end with each of several loaders.
        """
        same = self._data_sets.same(dataset)
        if same is not None and options.get("persistent_workers"):
            raise UsageError(
                "persistent_workers keeps a loader's processes from epoch to epoch, but this is "
                "another loader for the same data; make one, before the loop over epochs"
            )
        return same or Data(finder(dataset), kind_of(dataset), batch_size)

    def attach(
        self, loader: ShareLoader | ClientLoader, data: Data, batch_size: int
    ) -> ShareLoader | ClientLoader:
        """Let a loader count samples, follow the batch size and report clients and rounds.

        Raises: UsageError for a loader of other data, or another first batch size, where one is followed.
        """
        bound = self._bound()
        if self._is_over:
            disconnect(bound, [loader])
            return loader
        if self._later:
            loader.share_among(self._membership, at_once=False)
        follows = isinstance(loader, ClientLoader) or BATCH_SIZE in bound.algorithm.needs
        others = self._data_sets.like(data.kind)
        data.is_new = data.is_new or data.find() is not loader.dataset
        data.find = finder(loader.dataset)
        self._live.add(loader)
        loader.on_begin = partial(self._begin, weakref.ref(loader), data, batch_size, follows=follows)
        if others and data not in others:
            self._unread.add(loader)
            data.comes_late = not all(one.progress.is_at_begin for one in others)
        else:
            if follows:
                self._follow(bound.algorithm, data, batch_size)
            connect(self._bound, loader, self._event)
        self._data_sets.add(data)
        return loader

    def go_on_with(
        self, now: Membership, saved: Sequence[Mapping[str, Any]] | None, caught_up_at: int
    ) -> None:
        """Follow the same algorithm among other ranks, who read the data from now on.

        Args:
            now: this rank among them.
            saved: from where on, for data sets that are read now or later; None where each reads on.
            caught_up_at: the clock until which a rank that is behind reads in its old share, as others
                have; 0 for one that is not.
        """
        for loader in self._live - self._unread:
            connect(self._bound, loader, self._event)
        if saved is not None and caught_up_at:
            self._later.append(_Later(caught_up_at, saved, now))
            return
        self._later = []
        self._share(now, at_once=saved is not None)
        if saved is not None:
            self._data_sets.restore(saved)

    def end(self) -> None:
        """The run is over: no loader tells the algorithm of anything, nor does one that is made later."""
        self._is_over = True
        disconnect(self._bound(), self._live)

    def read_until(self, next_step: int) -> int:
        """The clock at what `export` tells, where this rank's step is over at `next_step`."""
        return max([next_step, *(one.step for one in self._later)])

    def catch_up(self, step: int) -> None:
        """This rank's clock has come so far: where others had, it reads on with those who were left then."""
        while self._later and self._later[0].step <= step:
            reached = self._later.pop(0)
            self._share(reached.membership, at_once=True)
            self._data_sets.restore(reached.saved)

    def _share(self, membership: Membership, *, at_once: bool) -> None:
        self._membership = membership
        for loader in self._live:
            loader.share_among(membership, at_once=at_once)

    @property
    def in_round(self) -> bool:
        """Whether a round of clients has begun and not ended."""
        return self._followed is not None and self._followed.progress.in_round

    def export(self) -> list[dict[str, Any]]:
        """What a checkpoint keeps, also of data sets that no loader was made for yet.

        A rank that is behind the others will have read as far as they have.
        """
        if self._later:
            return list(map(dict, self._later[-1].saved))
        return self._data_sets.export()

    def restore(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Go on from a checkpoint, also with loaders that are made later."""
        if self._later:
            now, self._later = self._later[-1].membership, []
            self._share(now, at_once=True)
        self._data_sets.restore(saved)

    def _begin(self, find: Callable[[], Any], data: Data, batch_size: int, *, follows: bool) -> None:
        """A loader is first read, whose data may be those of one that is gone by now."""
        loader, bound = find(), self._bound()
        if data.is_new:
            followed = self._data_sets.begin(bound, data, may_follow=loader in self._unread)
            if followed is not None and followed is self._followed:
                self._followed = data
        elif not data.progress.position.batches:
            data.is_anew = False
        if loader in self._unread:
            self._unread.remove(loader)
            if follows:
                self._follow(bound.algorithm, data, batch_size)
            connect(self._bound, loader, self._event)

    def _follow(self, algorithm: Algorithm, data: Data, batch_size: int) -> None:
        if self._followed not in (None, data):
            raise UsageError(
                f"{algorithm.name} follows the training data's loader, and this is a second one, for "
                "other data; use a plain DataLoader for evaluation, and make training data once, before the "
                "loop over epochs"
            )
        if BATCH_SIZE in algorithm.needs and batch_size != data.batch_size:
            raise UsageError(
                f"{algorithm.name} chooses the batch size itself, beginning with {data.batch_size}, and "
                f"a loader for the same data has batch_size={batch_size}; give the first one"
            )
        self._followed = data


class _Later(NamedTuple):
    """Where a rank that is behind reads on with others: one for each loss that is ahead of it.

    Args:
        step: the clock there.
        saved: how far data sets are read there.
        membership: whose share it reads from there on.
    """

    step: int
    saved: Sequence[Mapping[str, Any]]
    membership: Membership
