"""Results as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from relaxcomm.cli.rows import show_rows
from relaxcomm.system.quantities import data_size
from relaxcomm.training.results import Result


def show(results: Sequence[Result], failed: Mapping[str, str] = MappingProxyType({})) -> None:
    """Print one row a result, the algorithm's name first, and below them those that failed, and why."""
    if results:
        show_rows(*cells(results), title=title(results[0]))
    for name, why in failed.items():
        print(f"{name}  failed: {why}")


def title(result: Result) -> str:
    """What all results of a comparison share."""
    over = "" if result.link is None else f" over simulated links of {result.link}"
    on = "" if result.device == "cpu" else f", {result.device}"
    return f"{result.task} on {result.workers} worker" + ("s" if result.workers != 1 else "") + on + over


def link_in_words(result: Result) -> str:
    """What was between the workers of a comparison."""
    if result.link is None:
        return "none simulated; the workers shared one machine, --link 100mbit,5ms shows a slow network"
    return f"simulated, {result.link} for each worker"


def cells(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """The table's heading and rows as text."""
    header = [
        "algorithm",
        results[0].heading,
        "time",
        "steps",
        "local steps",
        "sent",
        "reduction",
    ]
    rows = [
        [
            result.algorithm,
            f"{result.measure:.4f}",
            f"{result.seconds:.2f} s",
            f"{result.steps}",
            f"{result.lssr:.0%}",
            data_size(result.bytes_sent),
            _reduction(result),
        ]
        for result in results
    ]
    return header, rows


def _reduction(result: Result) -> str:
    if result.reduction is not None:
        return f"{result.reduction:.1f}x"
    return "never exchanged" if never_exchanged(result) else "-"


def never_exchanged(result: Result) -> bool:
    """Whether workers were only averaged at the end, which is no merit of an algorithm."""
    return result.workers > 1 and not result.synchronisations
