"""What the engine learns from the loader, and what it tells it."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.data import ClientLoader, Progress, ShareLoader
from relaxcomm.errors import UsageError
from relaxcomm.primitives.controllers.norm_test import BATCH_SIZE
from relaxcomm.replica.replica import Replica
from relaxcomm.step.bound import Bound

Event: TypeAlias = Callable[[str, Mapping[str, float]], None]


@dataclass(eq=False)
class Data:
    """A data set that loaders are made for.

    Args:
        find: the data set, or None when nobody has it any more.
        kind: its type and length.
        batch_size: of its first loader.
        progress: how far it was read.
    """

    find: Callable[[], object]
    kind: tuple[str, int]
    batch_size: int
    progress: Progress = field(default_factory=Progress)


class Loaders:
    """Lets loaders go on where the last one for the same data stopped, and follows them.

    The same data are the same object; or, where nobody has that one but loaders of ours, one of the same type
    and length, so that a data set may be made anew for each epoch, too.

    Args:
        event: told when a client and a round have ended.
    """

    def __init__(self, event: Event) -> None:
        self._event = event
        self._known: list[Data] = []
        self._saved: list[Mapping[str, Any]] = []  # of data sets that no loader was made for yet
        self._followed: Data | None = None
        self._live: weakref.WeakSet[ShareLoader | ClientLoader] = weakref.WeakSet()
        self._later: _Later | None = None

    def find(self, dataset: Any, batch_size: int, options: Mapping[str, Any]) -> Data:
        """A data set that is to be read by another loader, or for the first time.

        Raises: UsageError for loading processes that would end with each of several loaders.
        """
        kind = _kind(dataset)
        same = [data for data in self._known if data.find() is dataset]
        same += [data for data in self._known if data.kind == kind and self._is_given_up(data)]
        if same and options.get("persistent_workers"):
            raise UsageError(
                "persistent_workers keeps a loader's processes from epoch to epoch, but this is "
                "another loader for the same data; make one, before the loop over epochs"
            )
        return same[0] if same else Data(_finder(dataset), kind, batch_size)

    def attach(
        self, bound: Bound, loader: ShareLoader | ClientLoader, data: Data, batch_size: int
    ) -> ShareLoader | ClientLoader:
        """Let a loader count samples, follow the batch size and report clients and rounds.

        Raises: UsageError for a loader of other data, or another first batch size, where one is followed.
        """
        if isinstance(loader, ClientLoader) or BATCH_SIZE in bound.algorithm.needs:
            self._follow(bound.algorithm, data, batch_size)
        data.find = _finder(loader.dataset)
        if data not in self._known:
            self._known.append(data)
            self._go_on(data)
        self._live.add(loader)
        self._connect(bound, loader)
        return loader

    def go_on_with(
        self, bound: Bound, saved: Sequence[Mapping[str, Any]] | None, steps_behind: int = 0
    ) -> None:
        """Follow the same algorithm among other ranks, who read the data from now on.

        Args:
            bound: the algorithm.
            saved: from where on, for data sets that are read now or later; None where each reads on.
            steps_behind: batches that this rank reads in its old share first, which the others have read.
        """
        self._later = None
        if steps_behind and saved is not None:
            self._later = _Later(steps_behind, lambda: self.go_on_with(bound, saved))
            for loader in self._live:
                self._connect(bound, loader)
            return
        if saved is not None:
            self.restore(saved)
        for loader in self._live:
            if isinstance(loader, ClientLoader):
                loader.share_among(bound.world.membership)
            else:
                loader.share_among(bound.world.membership, at_once=saved is not None)
            self._connect(bound, loader)

    def export(self) -> list[dict[str, Any]]:
        """What a checkpoint keeps."""
        return [{"kind": list(data.kind), **data.progress.export()} for data in self._known]

    def restore(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Go on from a checkpoint, also with loaders that are made later."""
        self._saved = list(saved)
        for data in self._known:
            self._go_on(data)

    def _connect(self, bound: Bound, loader: ShareLoader | ClientLoader) -> None:
        """Have a loader tell of what it gives out, and listen to what the algorithm chooses."""

        def given(samples: int) -> None:
            bound.world.statistics.given(samples)
            if self._later is not None:
                self._later.given()

        loader.on_batch = given
        if isinstance(loader, ClientLoader):
            bound.controllers.follow_loader()
            loader.on_client_begin = _Players(bound.replica).begin
            loader.on_client_end = lambda samples: self._event("client", {"samples": samples})
            loader.on_round_end = lambda: self._event("round", {})
        elif BATCH_SIZE in bound.algorithm.needs:
            bound.controllers.follow_loader()
            bound.controllers.follow(BATCH_SIZE, loader.sizes.batch_size, loader.sizes.resize)

            def given_to_controllers(samples: int) -> None:
                given(samples)
                bound.controllers.given(samples)

            loader.on_batch = given_to_controllers

    def _go_on(self, data: Data) -> None:
        """Go on where the first of what was saved of such data stopped."""
        for saved in self._saved:
            if tuple(saved["kind"]) == data.kind:
                data.progress.restore(saved)
                self._saved.remove(saved)
                return

    def _is_given_up(self, data: Data) -> bool:
        """Whether nobody has the data set, or only a loader that has read it, which the next one replaces."""
        ours = self._held_by_loaders(data) + (not isinstance(data.find, weakref.ref))
        return data.find() is None or (data.progress.epoch > 0 and _holders(data.find) <= ours)

    def _held_by_loaders(self, data: Data) -> int:
        """How often loaders have it: torch gives each a sampler besides, which has it, too."""
        held = [one for loader in self._live for one in (loader.dataset, _sampled(loader))]
        return sum(one is data.find() for one in held)

    def _follow(self, algorithm: Algorithm, data: Data, batch_size: int) -> None:
        if self._followed not in (None, data):
            raise UsageError(
                f"{algorithm.name} follows the training data's loader, and this is a second one, for "
                "other data; use a plain DataLoader for evaluation"
            )
        if BATCH_SIZE in algorithm.needs and batch_size != data.batch_size:
            raise UsageError(
                f"{algorithm.name} chooses the batch size itself, beginning with {data.batch_size}, and "
                f"a loader for the same data has batch_size={batch_size}; give the first one"
            )
        self._followed = data


def _finder(dataset: object) -> Callable[[], object]:
    """Finds a data set as long as somebody else has it, or, where that cannot be known, keeps it."""
    try:
        return weakref.ref(dataset)
    except TypeError:
        return lambda: dataset


def _sampled(loader: ShareLoader | ClientLoader) -> object:
    return getattr(loader.sampler, "data_source", None)


def _holders(find: Callable[[], object]) -> int:
    """How many have what is found."""
    only = object()  # which one has
    return _references(find) - _references(lambda: only) + 1


def _references(find: Callable[[], object]) -> int:
    found = find()
    return sys.getrefcount(found)


def _kind(dataset: Any) -> tuple[str, int]:
    return f"{type(dataset).__module__}.{type(dataset).__qualname__}", len(dataset)


class _Later:
    """Shares data anew after some batches."""

    def __init__(self, batches: int, share: Callable[[], None]) -> None:
        self._left, self._share = batches, share

    def given(self) -> None:
        """A batch was given out."""
        self._left -= 1
        if not self._left:
            self._share()


class _Players:
    """Each client's own optimizer state, of which one is in use at a time."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def begin(self, client: int) -> None:
        """Put a client's state into the optimizers."""
        for optimizer, state in zip(self._replica.optimizers, self._replica.states_of(client), strict=True):
            optimizer.state = state
