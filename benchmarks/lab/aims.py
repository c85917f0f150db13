"""What the project aims at in each place, and by how much it is reached or missed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.lab.tables import Row, Table

_OF_LIMIT = {"1gbit": 1.25, "100mbit": 1.5}
_OVER_DDP = {("digits", "100mbit"): 30.0, ("digits", None): 1.0, ("charlm", None): 1.0, ("glyphs", None): 1.0}
_SELSYNC_OVER_DDP = {("digits", "100mbit"): 14.0, ("glyphs", "100mbit"): 14.0}
_OVER_RIVAL = 1.2
_AUTO_OF_BEST = 1.1


class Figure(StrEnum):
    """What is measured, in the order in which it is told."""

    OF_LIMIT = "of limit"
    OVER_DDP = "over DDP"
    SELSYNC_OVER_DDP = "SelSync over DDP"
    OVER_RIVAL = "over best rival"
    AUTO_OF_BEST = "auto of best"


@dataclass(frozen=True)
class Aim:
    """One figure in one place.

    Args:
        figure: which.
        what: it says.
        value: that was measured; infinity or NaN where a side never reached the target.
        bound: that is aimed at, or None.
        at_most: whether the value should be below the bound, rather than above.
    """

    figure: Figure
    what: str
    value: float
    bound: float | None
    at_most: bool = False

    @property
    def is_reached(self) -> bool | None:
        """None where nothing is aimed at."""
        if self.bound is None:
            return None
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    def __str__(self) -> str:
        if self.bound is None:
            return f"{self.what}: {self.value:.2f}"
        side, end = "at most" if self.at_most else "at least", "reached" if self.is_reached else "missed"
        return f"{self.what}: {self.value:.2f} ({side} {self.bound:g}: {end})"


def aims(table: Table) -> Iterator[Aim]:
    """The figures of one table; those whose sides did not take part are left out."""
    workload, rate = table.place.workload, table.place.rate
    ours, rivals = table.ours, table.rivals
    if not ours:
        return
    best = fastest(ours)
    if not math.isnan(table.limit):
        what, of_limit = f"{best.label}, of the limit", best.seconds / table.limit
        yield Aim(Figure.OF_LIMIT, what, of_limit, _OF_LIMIT.get(rate or ""), True)
    bounds = [(Figure.OVER_DDP, best, _OVER_DDP)]
    if selsync := [row for row in ours if "selsync" in row.label]:
        bounds.append((Figure.SELSYNC_OVER_DDP, fastest(selsync), _SELSYNC_OVER_DDP))
    for ddp in (row for row in rivals if row.label == "ddp"):
        for figure, row, bound in bounds:
            what = f"{row.label}, times as fast as DDP"
            yield Aim(figure, what, ddp.seconds / row.seconds, bound.get((workload, rate)))
    if any(row.label != "ddp" for row in rivals):  # DDP alone says nothing of the best
        rival = fastest(rivals)
        what = f"{best.label}, times as fast as {rival.label}, the best rival"
        yield Aim(Figure.OVER_RIVAL, what, rival.seconds / best.seconds, _OVER_RIVAL)
    chosen = [row for row in ours if row.label == "relaxcomm auto"]
    fixed = [row for row in ours if row not in chosen]
    if chosen and fixed:
        of_best = chosen[0].seconds / fastest(fixed).seconds
        yield Aim(Figure.AUTO_OF_BEST, "auto, of the best fixed choice", of_best, _AUTO_OF_BEST, True)


def fastest(rows: list[Row]) -> Row:
    """Of some contenders."""
    return min(rows, key=lambda row: row.seconds)
