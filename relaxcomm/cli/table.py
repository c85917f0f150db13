"""Results as a table: drawn on a terminal, plain aligned lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rich.console import Console
from rich.table import Table

from relaxcomm.training.results import Result


def show(results: Sequence[Result], failed: Mapping[str, str] = MappingProxyType({})) -> None:
    """Print one row a result, the algorithm's name first, and below them those that failed, and why."""
    if results:
        _show_table(results)
    for name, why in failed.items():
        print(f"{name}  failed: {why}")


def _show_table(results: Sequence[Result]) -> None:
    header, rows = cells(results)
    console = Console()
    table = Table(title=title(results[0]))
    for column, heading in enumerate(header):
        table.add_column(heading, justify="right" if column else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    if console.is_terminal and console.measure(table).maximum <= console.width:
        console.print(table)
        return
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        padded = (f"{cell:<{widths[0]}}" if not i else f"{cell:>{widths[i]}}" for i, cell in enumerate(row))
        print("  ".join(padded))


def title(result: Result) -> str:
    """What all results of a comparison share."""
    over = "" if result.link is None else f" over simulated links of {result.link}"
    return f"{result.task} on {result.workers} worker" + ("s" if result.workers != 1 else "") + over


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
        "synchronisations",
        "sent",
        "full synchronisation",
        "reduction",
    ]
    rows = [
        [
            result.algorithm,
            f"{result.measure:.4f}",
            f"{result.seconds:.2f} s",
            f"{result.steps}",
            f"{result.synchronisations}",
            data_size(result.bytes_sent),
            data_size(result.bytes_uncompressed),
            _reduction(result),
        ]
        for result in results
    ]
    return header, rows


def _reduction(result: Result) -> str:
    if result.reduction is not None:
        return f"{result.reduction:.1f}x"
    return "never exchanged" if result.workers > 1 and not result.synchronisations else "-"


def data_size(number_bytes: float) -> str:
    """Bytes in decimal units.

    Example:
        >>> data_size(1_234_567)
        '1.23 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number_bytes) < 999.5:  # else three digits would round to 1e+03
            return f"{number_bytes:.3g} {unit}"
        number_bytes /= 1000
    return f"{number_bytes:.3g} TB"
