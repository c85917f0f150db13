"""The data sets of a run: which are the same, and from where each is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relaxcomm.engine.loaders.known_data import Data, given_up, kind_of
from relaxcomm.engine.reporting.run_warnings import warn_of_held_data, warn_of_other_length
from relaxcomm.step.bound import Bound


class DataSets:
    """The data sets that loaders were made for, and those that a checkpoint tells of.

    The same data are the same object; or one of the same type and length, where nobody has that one any more
    when the new one is read first, so that a data set may be made anew for each epoch, too. In which order a
    data set is read first does not depend on that, nor on when garbage is collected: in none in which one of
    the same type and length was read, so that ranks read alike, and no order comes again.
    """

    def __init__(self) -> None:
        self._known: list[Data] = []
        self._saved: list[Mapping[str, Any]] = []  # of data sets that no loader was made for yet
        self._warned_of: set[str] = set()

    def same(self, dataset: object) -> Data | None:
        """The one that this is, or may go on from."""
        same = [data for data in self._known if data.find() is dataset]
        same = same or given_up(self.like(kind_of(dataset)))
        return same[0] if same else None

    def like(self, kind: tuple[str, int]) -> list[Data]:
        """The known data sets of a type and length."""
        return [data for data in self._known if data.kind == kind]

    def add(self, data: Data) -> None:
        """Know one that a loader was made for, which goes on where a checkpoint says."""
        if data not in self._known:
            self._known.append(data)
            self._go_on(data)

    def begin(self, bound: Bound, data: Data, *, may_follow: bool) -> Data | None:
        """Choose the order of the first epoch of one that is about to be read.

        Args:
            bound: the algorithm that runs.
            data: that was not read yet.
            may_follow: whether it may go on where such data stopped that nobody has any more.

        Returns: those data.
        """
        data.is_new, followed = False, None
        others = [one for one in self.like(data.kind) if one is not data]
        saved = [one["epoch"] for one in self._saved if tuple(one["kind"]) == data.kind]
        order = max([*saved, *(one.progress.order for one in others)], default=0)
        if may_follow:
            if old := given_up(others):
                followed = old[0]
                self._take_over(followed, data)
            elif data.comes_late and "held data" not in self._warned_of:
                self._warned_of.add("held data")
                warn_of_held_data(bound, data.kind)
        lengths = {one["kind"][1] for one in self._saved if one["kind"][0] == data.kind[0]} - {data.kind[1]}
        if lengths and not others and data.progress.is_at_begin and "other length" not in self._warned_of:
            self._warned_of.add("other length")
            warn_of_other_length(bound, data.kind, lengths)
        data.is_anew = data.comes_late or data.progress.order > 0
        data.progress.skip_orders(order)
        return followed

    def export(self) -> list[dict[str, Any]]:
        """What a checkpoint keeps, also of data sets that no loader was made for yet."""
        known = [
            {"kind": list(data.kind), "anew": data.is_anew, **data.progress.export()} for data in self._known
        ]
        return [*known, *map(dict, self._saved)]

    def restore(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Go on from what was exported, also with data sets that loaders are made for later."""
        self._saved = list(saved)
        for data in self._known:
            self._go_on(data)

    def _take_over(self, old: Data, data: Data) -> None:
        """Go on where another one stopped, and take its place."""
        if data.progress.is_at_begin:
            data.progress.restore(old.progress.export())
        data.batch_size = old.batch_size
        self._known.remove(data)
        self._known[self._known.index(old)] = data

    def _go_on(self, data: Data) -> None:
        if of_kind := [saved for saved in self._saved if tuple(saved["kind"]) == data.kind]:
            others_anew = any(one.is_anew for one in self.like(data.kind) if one is not data)
            self._saved.remove(data.go_on_from(of_kind, others_anew=others_anew))
