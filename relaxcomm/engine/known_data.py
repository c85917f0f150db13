"""A data set that loaders are made for, and how far it was read."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Sequence
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
    """

    find: Callable[[], object]
    kind: tuple[str, int]
    batch_size: int
    progress: Progress = field(default_factory=Progress)
    is_new: bool = True
    comes_late: bool = False

    @property
    def is_given_up(self) -> bool:
        """Whether nobody has the data set any more, nor a loader of it."""
        return self.find() is None or (not isinstance(self.find, weakref.ref) and _holders(self.find) <= 1)


def given_up(data: Sequence[Data]) -> list[Data]:
    """Those that nobody has any more, whenever garbage is collected."""
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
