"""What may not be written into: what a primitive is shown, its old slots, and the primitive itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor

from relaxcomm.checks.finding import expect
from relaxcomm.roles import is_buffer


def expect_left(what: str, now: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Complain if what a primitive is shown was written into."""
    same = all(map(torch.equal, now, before))
    expect(same, f"writes into {what} in place, which cannot be taken back; make a new tensor")


def attributes(primitive: object) -> dict[str, str]:
    """What lies in an object beside cached properties, in words."""
    cls, held = type(primitive), getattr(primitive, "__dict__", {})
    cached = {one for one in held if isinstance(inspect.getattr_static(cls, one, None), cached_property)}
    return {name: repr(value) for name, value in held.items() if name not in cached}


def nothing_is_added(primitive: object, before: Mapping[str, str]) -> None:
    """It keeps nothing in itself: workers of a process, and buckets, share it, and no checkpoint holds it."""
    added = sorted(name for name, value in attributes(primitive).items() if before.get(name) != value)
    expect(
        not added,
        f"keeps {added} in itself, which workers share and no checkpoint holds; keep what changes in slots, "
        "and what follows from the arguments alone in a functools.cached_property",
    )


class Held:
    """Slots as they are now; buffers, which may be written into, are not among them."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._before = {name: (slot, slot.clone()) for name, slot in state.items() if not is_buffer(name)}

    def written(self) -> list[str]:
        """The slots whose tensors hold something else by now, assigned anew or not."""
        return [
            name
            for name, (slot, before) in self._before.items()
            if not torch.equal(slot.nan_to_num(), before.nan_to_num())
        ]


def expect_assigned(written: list[str]) -> None:
    """Complain of slots that were written into."""
    how = " and ".join(f"state[{name!r}]" for name in written)
    expect(
        not written,
        f"writes into its slots {written} in place, which cannot be taken back; assign a new tensor to {how}",
    )


@contextmanager
def slots_assigned(state: Mapping[str, Tensor]) -> Iterator[None]:
    """Complain if a slot is written into within."""
    held = Held(state)
    yield
    expect_assigned(held.written())
