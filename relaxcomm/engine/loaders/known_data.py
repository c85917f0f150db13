"""A data set that loaders are made for, and how far it was read."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relaxcomm.data import Progress


@dataclass(eq=False)
class Data:
    """A data set that loaders are made for.

    Args:
        find: the data set, or None when nobody has it any more.
        kind: its type and length.
        batch_size: of its first loader.
        progress: how far it was read.
        is_new: whether it was not read yet, nor is read on from a checkpoint.
        comes_late: whether data of its kind had been read when its first loader was made.
        is_anew: whether it was made after data of its kind were read, and was not read in two epochs itself.
    """

    find: Callable[[], object]
    kind: tuple[str, int]
    batch_size: int
    progress: Progress = field(default_factory=Progress)
    is_new: bool = True
    comes_late: bool = False
    is_anew: bool = False

    @property
    def is_given_up(self) -> bool:
        """Whether nobody has the data set any more, nor a loader of it."""
        return self.find() is None or (not isinstance(self.find, weakref.ref) and _holders(self.find) <= 1)

    def go_on_from(self, saved: Sequence[Mapping[str, Any]], *, others_anew: bool) -> Mapping[str, Any]:
        """Go on where the first of these stopped, or one that is made anew and was left in mid-epoch.

        What is made anew goes on in an order that comes no earlier than others', as without a checkpoint. So
        does what was read in one epoch only, where others of its kind are made anew.

        Args:
            saved: of data sets of this kind.
            others_anew: whether others of this kind, which go on already, are made anew.

        Returns: the one that this is.
        """
        anew = [one for one in saved if one["anew"]]
        left = [one for one in anew if one["place"][1]] if self.is_new else []
        mine = (left or saved)[0]
        self.progress.restore(mine)
        is_kept = not mine["anew"] and (self.progress.epoch > 1 or not (anew or others_anew))
        self.is_anew = not is_kept
        self.is_new = self.is_new and not is_kept and not mine["place"][1]
        return mine


def given_up(data: Sequence[Data]) -> list[Data]:
    """The data sets that nobody has any more, whenever garbage is collected."""
    if not all(one.is_given_up for one in data):
        gc.collect()
    return [one for one in data if one.is_given_up]


def finder(dataset: object) -> Callable[[], object]:
    """Finds a data set as long as somebody else has it, or, where that cannot be known, keeps it."""
    try:
        return weakref.ref(dataset)
    except TypeError:
        return lambda: dataset


def kind_of(dataset: Any) -> tuple[str, int]:
    """Its type and length."""
    return f"{type(dataset).__module__}.{type(dataset).__qualname__}", len(dataset)


def _holders(find: Callable[[], object]) -> int:
    """How many have what is found."""
    only = object()  # which one has
    return _references(find) - _references(lambda: only) + 1


def _references(find: Callable[[], object]) -> int:
    found = find()
    return sys.getrefcount(found)
