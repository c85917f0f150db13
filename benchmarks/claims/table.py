"""The table of claims, trials and verdicts, from what a result file holds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

HEAD = """# Claims of the papers, and what came out here

Made by `python -m benchmarks.claims` on {cores} cores ({cpu}) with torch {torch}. Workers are simulated in
one process, so quality, steps, exchanges and bytes count, not seconds. Every row has the best of the learning
rates below for itself, chosen on a seed of its own; shown is the median of the seeds with the lowest and the
highest. Beside each trial stand `bsp`, and workers that never exchange and whose models are averaged for the
evaluation: where that is as good, a setting can tell nothing. Quality is accuracy, or minus bits per
character on charlm; differences below the margin count as none. Megabytes are those that the first worker
sent while training.

| setting | samples a worker and step | epochs | margin | learning rates | seeds | made |
|---|---|---|---|---|---|---|
{settings}

| claim | paper | setting | verdict |
|---|---|---|---|
{verdicts}
"""


def markdown(content: Mapping[str, Any]) -> str:
    """The whole page of a result file."""
    results, settings = content["results"], content["settings"]
    environment = next(iter(settings.values()))["environment"]
    head = HEAD.format(
        torch=environment["versions"]["torch"],
        cores=environment["machine"]["cores"],
        cpu=environment["machine"]["cpu"],
        settings="\n".join(_setting(name, one) for name, one in settings.items()),
        verdicts="\n".join(
            f"| [{one['says']}](#{_anchor(one)}) | {one['paper']} | {one['setting']} | {one['verdict']} |"
            for one in results
        ),
    )
    return "\n".join([head, *map(_details, results)])


def _setting(name: str, one: Mapping[str, Any]) -> str:
    grid = "; ".join(
        f"{kind} {', '.join(f'{rate:g}' for rate in rates)}" for kind, rates in one["rates"].items()
    )
    made = f"{one['environment']['date'][:10]}, commit {one['environment']['commit']}"
    job = f"{one['batch_size']} | {one['epochs']} | {one['margin']:g} | {grid} | {one['seeds']}"
    return f"| {name}: {one['about']} | {job} | {made}, {one['seconds'] / 60:.0f} min |"


def _title(result: Mapping[str, Any]) -> str:
    return f"{result['claim']} on {result['setting']}"


def _anchor(result: Mapping[str, Any]) -> str:
    return _title(result).replace(" ", "-")


def _details(result: Mapping[str, Any]) -> str:
    verdict = result["verdict"]
    lines = [
        f"## {_title(result)}",
        "",
        f"{result['paper']}: {result['says']}. **{verdict[0].upper()}{verdict[1:]}.**",
        "",
        "| | quality | exchanges | of steps | MB sent | learning rate |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(_row(label, tried) for label, tried in result["rows"].items()), ""])


def _row(label: str, tried: Mapping[str, Any]) -> str:
    def median(key: str) -> float:
        return statistics.median(run[key] for run in tried["runs"])

    found = [run["quality"] for run in tried["runs"]]
    quality = f"{median('quality'):.3f} ({min(found):.3f} to {max(found):.3f})"
    if math.isinf(min(found)):
        quality = f"{sum(map(math.isinf, found))} of {len(found)} diverged"
    counts = f"{median('exchanges'):.0f} | {median('steps'):.0f} | {median('megabytes'):.2f}"
    return f"| {label} | {quality} | {counts} | {tried['rate']:g} |"
