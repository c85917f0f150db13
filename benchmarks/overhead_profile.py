"""Where relaxcomm's own time goes: cProfile on rank 0, reduced to three short lists."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypedDict

import relaxcomm
from benchmarks.overhead_ranks import Plan, Side

Function = tuple[str, int, str]
"""File, line and name, as cProfile has them."""


class Row(TypedDict):
    """One function, over all profiled steps; seconds."""

    function: str
    calls: int
    own: float
    total: float


def profile_rank(rank: int, model_name: str, plan: Plan) -> dict[str, list[Row]]:
    """Profile one block of relaxcomm's steps; the other ranks only take part."""
    side = Side("relaxcomm", model_name, rank)
    side.timed(plan.warmup_steps)
    profiler = cProfile.Profile()
    if rank == 0:
        profiler.enable()
    side.timed(plan.profile_steps)
    profiler.disable()
    side.close()
    return reduce_profile(profiler) if rank == 0 else {}


def reduce_profile(profiler: cProfile.Profile) -> dict[str, list[Row]]:
    """Split a profile into relaxcomm's entry points, its functions, and what these call in torch."""
    table: dict[Function, Any] = vars(pstats.Stats(profiler))["stats"]
    entries, functions, callees = [], [], []
    for function, (_, calls, own, total, callers) in table.items():
        outside = [edge for caller, edge in callers.items() if not _ours(caller)]
        inside = [edge for caller, edge in callers.items() if _ours(caller)]
        if _ours(function):
            functions.append(Row(function=_name(function), calls=calls, own=own, total=total))
            if outside:
                entries.append(_edges(function, outside))
        elif inside:
            callees.append(_edges(function, inside))
    return {"entries": entries, "functions": functions, "callees": callees}


def print_profile(profile: dict[str, list[Row]], steps: int) -> None:
    """Print the three lists, per step. cProfile adds about a microsecond to every call."""
    _table("callbacks: relaxcomm called from torch or the loop", profile["entries"], "total", steps)
    _table("relaxcomm's functions, without what they call", profile["functions"], "own", steps)
    _table("torch and built-ins, called from relaxcomm", profile["callees"], "total", steps)


def _table(title: str, rows: Sequence[Row], key: str, steps: int) -> None:
    def seconds(row: Row) -> float:
        return row["own"] if key == "own" else row["total"]

    print(f"  {title}: {sum(map(seconds, rows)) / steps * 1e6:.0f} us a step")
    for row in sorted(rows, key=seconds, reverse=True)[:15]:
        print(
            f"    {seconds(row) / steps * 1e6:9.1f} us  {row['calls'] / steps:8.1f} calls  {row['function']}"
        )


def _edges(function: Function, edges: Iterable[tuple[int, int, float, float]]) -> Row:
    calls, _, own, total = (sum(column) for column in zip(*edges, strict=True))
    return Row(function=_name(function), calls=int(calls), own=own, total=total)


def _ours(function: Function) -> bool:
    return Path(function[0]).is_relative_to(Path(relaxcomm.__file__).parent)


def _name(function: Function) -> str:
    file, line, name = function
    return name if file == "~" else f"{'/'.join(Path(file).parts[-2:])}:{line} {name}"
