"""Slots that share no memory with what a primitive is only lent, so that any of it may be assigned."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from operator import attrgetter

from torch import Tensor

from relaxcomm.tensors.buckets import Bucket

_tensor = attrgetter("tensor")


class UnsharedState(MutableMapping[str, Tensor]):
    """Slots as they are given to a call; one that is assigned memory lent to it keeps a copy.

    At the assignment, as who lends may write into it long before slots are kept: an exchange does while a
    compressor waits for messages.

    Args:
        slots: which they are.
        lent: whose memory others write into later.
    """

    def __init__(self, slots: MutableMapping[str, Tensor], *lent: Tensor | Bucket) -> None:
        self._slots, self._lent = slots, lent

    def __getitem__(self, slot: str) -> Tensor:
        return self._slots[slot]

    def __setitem__(self, slot: str, value: Tensor) -> None:
        self._slots[slot] = value.clone() if isinstance(value, Tensor) and self._is_lent(value) else value

    def __delitem__(self, slot: str) -> None:
        del self._slots[slot]

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def _is_lent(self, value: Tensor) -> bool:
        """Whether anything that is lent lies in the memory of a value: looked up now, as it may move."""
        memory = value.untyped_storage()
        places = range(memory.data_ptr(), memory.data_ptr() + memory.nbytes())
        for one in self._lent:  # `data_ptr` makes no view, which would take longer than all else here
            tensors = map(_tensor, one.items) if isinstance(one, Bucket) else [one]
            if any(map(places.__contains__, map(Tensor.data_ptr, tensors))):
                return True
        return False
