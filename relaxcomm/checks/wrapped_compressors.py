"""Checks of what is made around a compressor: its facts follow from the compressor's, and are as true."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from relaxcomm.checks.compressor_facts_hold import facts_hold
from relaxcomm.checks.finding import Broken
from relaxcomm.errors import CompositionError
from relaxcomm.primitives.compressors.cast import cast
from relaxcomm.primitives.compressors.chain import chain
from relaxcomm.primitives.compressors.ef21 import ef21
from relaxcomm.primitives.compressors.error_feedback import error_feedback
from relaxcomm.primitives.compressors.switch import switch
from relaxcomm.primitives.compressors.top_k import top_k
from relaxcomm.roles import Compressor

_DRAWS = 40

_AROUND: tuple[Callable[[Compressor], Compressor], ...] = (
    lambda one: error_feedback(compressor=one),
    lambda one: error_feedback(compressor=one, decay=0.5),
    lambda one: ef21(compressor=one),
    lambda one: chain(compressors=(one, cast(dtype="bfloat16"))),
    lambda one: chain(compressors=(top_k(density=0.5), one)),
    lambda one: switch(first=one, then=one, steps=3),
)


def wrapped(compressor: Compressor) -> Iterator[Compressor]:
    """Every legal compressor around one."""
    for make in _AROUND:
        try:
            yield make(compressor)
        except CompositionError:
            continue


def wrapped_facts_are_true(compressor: Compressor) -> None:
    """All checks of a compressor, on what is made around it."""
    for one in wrapped(compressor):
        for name, run in facts_hold(draws=_DRAWS).items():
            try:
                run(one)
            except Broken as broken:
                raise Broken(f"{one!r} {name}: {broken}") from broken
