"""What no primitive may do: write into what it is shown or keeps, keep something in itself, draw from the
program's generators, ask the machine's clock, or count steps from the run's first."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from relaxcomm.checks.finding import expect, is_plugin
from relaxcomm.roles import is_buffer
from relaxcomm.step.kept_slots import Slots
from relaxcomm.system.random_states import export_random, raw

_HOST = torch.device("cpu")
_LATE, _STARTS = 100_800, 20  # steps, a multiple of usual periods; and how many such, as some draws are rare
_NOW = {"now", "today", "utcnow"}  # of datetime
ALIKE = (
    "what all ranks have to do alike, such as to fire without a vote, may follow cx.step and numbers from "
    "torch.Generator().manual_seed(hash((seed, cx.step))), where seed is a whole number: the hash of text is "
    "another one in each process"
)


def expect_left(what: str, now: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Complain if what a primitive is shown was written into."""
    same = all(map(torch.equal, now, before))
    expect(same, f"writes into {what} in place, which cannot be taken back; make a new tensor")


class WatchedSlots(Slots):
    """Slots of which it is seen whether what they hold is written into, be it what was just assigned."""

    def __init__(self, values: Mapping[str, Tensor], owner: str) -> None:
        super().__init__(values, owner)
        self._seen: list[tuple[str, Tensor, Tensor]] | None = None

    def __setitem__(self, slot: str, value: Tensor) -> None:
        super().__setitem__(slot, value)
        self._note(slot)

    def watch(self) -> None:
        """Begin with what they hold now; buffers, which may be written into, are not looked at."""
        self._seen = []
        for slot in self:
            self._note(slot)

    def _note(self, slot: str) -> None:
        if self._seen is not None and not is_buffer(slot):
            self._seen.append((slot, self[slot], self[slot].clone()))

    def written(self) -> list[str]:
        """The slots of which a tensor holds something else than it did, assigned anew or not."""
        seen = self._seen or ()
        return sorted({slot for slot, *held in seen if not torch.equal(*map(torch.nan_to_num, held))})


class Values(Mapping[str, float]):
    """Values of which the names that were asked for are kept.

    Args:
        value: of every name.
        given: those of some names, in its place.
    """

    def __init__(self, value: float, given: Mapping[str, float] | None = None) -> None:
        self._value, self._given = value, given or {}
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> float:
        self.asked.add(name)
        return self._given.get(name, self._value)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def expect_assigned(written: Sequence[str]) -> None:
    """Complain of slots that were written into."""
    how = " and ".join(f"state[{name!r}]" for name in written)
    expect(
        not written,
        f"writes into its slots {written} in place, which cannot be taken back; assign a new tensor to {how}"
        ", and leave that as it is",
    )


@contextmanager
def slots_assigned(state: WatchedSlots) -> Iterator[None]:
    """Complain if a slot is written into within, or a clock of the machine is asked."""
    state.watch()
    with no_clock_asked():
        yield
    expect_assigned(state.written())


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


def global_states() -> dict[str, Any]:
    """The states of the generators that a whole program shares."""
    return export_random(_HOST)


def left_alone(before: Mapping[str, Any]) -> None:
    """They are as they were: dropout and the order of data draw from them, too."""
    changed = [name for name, state in global_states().items() if raw(state) != raw(before[name])]
    expect(
        not changed,
        f"seeds the global generator of {' and of '.join(changed)}, or draws from it: dropout and the order "
        f"of data would follow; draw from cx.generator(seed, device), other numbers on each rank; {ALIKE}",
    )


def expect_from_start(made: Callable[[int], object]) -> None:
    """Complain if it is in a rule that begins late what it is late in one that has begun at once.

    Args:
        made: what comes of some steps from a first one on, which can be compared.
    """
    late = made(_LATE)
    follows = late == made(0) or any(made(number * _LATE) != late for number in range(2, _STARTS))
    expect(
        follows,
        f"does something else in a rule that becomes active in step {_LATE}, as in a later phase of an "
        "algorithm, than in one that is from step 0 on: count steps by cx.step - cx.start, not by cx.step",
    )


@contextmanager
def no_clock_asked() -> Iterator[None]:
    """Complain if a plug-in asks a clock of the machine within."""
    asked: set[str] = set()

    def seen(frame: FrameType, event: str, called: Any) -> None:
        is_clock = event == "c_call" and (called.__module__ == "time" or called.__name__ in _NOW)
        if is_clock and is_plugin(frame):
            asked.add(called.__name__)

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()  # what listens to a collection may time it, and is called from the plug-in's frames
    sys.setprofile(seen)
    try:
        yield
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    expect(
        not asked,
        f"asks a clock of the machine, {' and '.join(sorted(asked))}(), of which no run sees the same again: "
        "take what it follows from cx, and time it in the training loop",
    )
