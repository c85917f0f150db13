"""Where the time of a step goes: to the training itself, and to communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

HEADERS = ("step ms", "= compute", "+ exposed", "(hidden)")


def seconds_a_step(records: Sequence[Mapping[str, Any]]) -> float:
    """Seconds over steps of whole trials, the median over them.

    Not the median over steps: that hides an exchange that is made every few steps only.
    """
    return median(record["seconds"] / record["steps"] for record in records)


@dataclass(frozen=True)
class Split:
    """The time of a step, in seconds.

    Args:
        step: all of it.
        compute: what a step takes that exchanges nothing.
        hidden: in which exchanges were on their way and nobody waited, or None if that is not told.
    """

    step: float
    compute: float
    hidden: float | None

    @property
    def exposed(self) -> float:
        """Step minus compute, at least 0: waiting, and a contender's own work such as compressing."""
        return max(0.0, self.step - self.compute)


def split_of(records: Sequence[Mapping[str, Any]], compute: float) -> Split:
    """The split of a contender's trials, beside the step of one that exchanges nothing."""
    hidden = [r["communication"]["hidden"] / r["steps"] for r in records if "hidden" in r["communication"]]
    return Split(seconds_a_step(records), compute, median(hidden) if hidden else None)


def cells(split: Split | None) -> tuple[str, ...]:
    """The columns of `HEADERS` in milliseconds; blank where nothing was measured."""
    if split is None:
        return ("",) * len(HEADERS)
    parts = (split.step, split.compute, split.exposed, split.hidden)
    return tuple("" if part is None else f"{1e3 * part:.1f}" for part in parts)
