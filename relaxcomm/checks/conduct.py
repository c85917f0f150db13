"""What no primitive may do: write into what it is shown or keeps, keep something in itself, draw from the
program's generators, ask the machine's clock, or count steps from the run's first."""

from __future__ import annotations

import builtins
import gc
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial, wraps
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor

from relaxcomm.checks.finding import Broken, expect, is_plugin
from relaxcomm.roles import is_buffer
from relaxcomm.step.kept_slots import Slots
from relaxcomm.system.random_states import export_random, raw

T = TypeVar("T")
_HOST = torch.device("cpu")
_LATE, _STARTS = 100_800, 20  # steps, a multiple of usual periods; and how many such, as some draws are rare
_NEAR = 0.3  # of the way from the first step to late ones, within which what is drawn does not always lie
_CLOCK = (
    "asks a clock of the machine, {}(), of which no run sees the same again: take what it follows from cx, "
    "and time it in the training loop"
)
_HASH = "takes the hash of text, another one in each process: seed with whole numbers, hash((seed, cx.step))"
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
    """Complain if a slot is written into within."""
    state.watch()
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


def expect_from_start(made: Callable[[int], Tensor]) -> None:
    """Complain if it is in a rule that begins late what it is late in one that has begun at once.

    What is drawn in each step, or comes again, is something else in each late rule; what grows or falls with
    the steps is about the same in all of them.

    Args:
        made: what comes of some steps from a first one on.
    """
    at_once, late = (made(start).double().nan_to_num() for start in (0, _LATE))
    if torch.equal(late, at_once):
        return
    others = (made(number * _LATE).double().nan_to_num() for number in range(2, _STARTS))
    limit = _NEAR * float((late - at_once).norm())
    expect(
        any(float((other - late).norm()) > limit for other in others),
        f"does something else in a rule that becomes active in step {_LATE}, as in a later phase of an "
        "algorithm, than in one that is from step 0 on: count steps by cx.step - cx.start, not by cx.step",
    )


def checks_of(checks: Mapping[str, Callable[[T], None]]) -> Callable[[T], dict[str, Callable[[], None]]]:
    """What makes checks, by name, of what they look at, each of which complains of what no run sees again."""

    def of(subject: T) -> dict[str, Callable[[], None]]:
        told: set[str] = set()  # by an earlier one

        def watching(run: Callable[[T], None]) -> Callable[[], None]:
            return wraps(run)(lambda: _watched(partial(run, subject), told))

        return {name: watching(run) for name, run in checks.items()}

    return of


def _watched(run: Callable[[], None], told: set[str]) -> None:
    """Run a check; complain instead if a plug-in asks, on any rank, what is another thing in each process."""
    asked: set[str] = set()
    try:
        with _asked_by_plugins(asked):
            run()
    except Broken:
        if asked <= told:
            raise
    new = sorted(asked - told)
    told |= asked
    expect(not new, "; it ".join(new))


@contextmanager
def _asked_by_plugins(asked: set[str]) -> Iterator[None]:
    """Note the clocks of the machine, and the hashes of text, that plug-ins ask within."""

    def seen(frame: FrameType, event: str, called: Any) -> None:
        is_clock = event == "c_call" and (called.__module__ == "time" or called.__name__ in _NOW)
        if is_clock and is_plugin(frame):
            asked.add(_CLOCK.format(called.__name__))

    def hashed(value: object) -> int:
        frame, watched = sys._getframe(1), sys.getprofile() is seen  # unlike threads from before
        is_own = is_plugin(frame) and frame.f_code.co_name != "__hash__"  # by which tables are ordered
        if watched and is_own and _has_text(value):
            asked.add(_HASH)
        return real(value)

    before, real, collects = (sys.getprofile(), threading.getprofile()), builtins.hash, gc.isenabled()
    gc.disable()  # what listens to a collection may time it, and is called from the plug-in's frames
    builtins.hash = hashed
    threading.setprofile(seen)
    sys.setprofile(seen)
    try:
        yield
    finally:
        builtins.hash = real
        threading.setprofile(before[1])  # None ends it
        if collects:
            gc.enable()
        sys.setprofile(before[0] if callable(before[0]) else None)  # cProfile's can only begin by itself


def _has_text(value: object) -> bool:
    return isinstance(value, str | bytes) or (isinstance(value, tuple) and any(map(_has_text, value)))
