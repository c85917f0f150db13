"""Whether a primitive counts steps from the first one of its rule, and asks no clock of the machine."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from relaxcomm.checks.finding import expect, is_plugin

_LATE, _STARTS = 100_800, 20  # steps, a multiple of usual periods; and how many such, as some draws are rare
_NOW = {"now", "today", "utcnow"}  # of datetime


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
