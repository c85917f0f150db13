"""Rows under headings: tables that fit on a terminal, plain aligned lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

_ENDLESS = 10_000  # columns; rich measures what is wider than the terminal as being as wide as it


def show_rows(
    header: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None, *, named_by: int = 1
) -> None:
    """Print rows, whose first columns name them.

    What is wider than a terminal is cut into several tables, of which each has the names.

    Args:
        header: headings of the columns.
        rows: their cells.
        title: above a table; plain lines have none.
        named_by: number of columns that name a row.

    Example:
        >>> show_rows(["algorithm", "sent"], [["bsp", "63 MB"], ["local_sgd", "4 MB"]])
        algorithm   sent
        bsp        63 MB
        local_sgd   4 MB
    """
    console = Console()
    if console.is_terminal:
        for columns in _that_fit(console, header, rows, named_by):
            table = _table(header, rows, columns)
            table.title, title = title, None
            if _width(console, table) > console.width:
                _print_plainly(header, rows, columns)
            else:
                console.print(table)
    else:
        _print_plainly(header, rows, range(len(header)))


def show_text(text: str) -> None:
    """Print a line, cut between words where a terminal is narrower than it."""
    console = Console()
    console.print(text, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def _that_fit(
    console: Console, header: Sequence[str], rows: Sequence[Sequence[str]], named_by: int
) -> Iterator[Sequence[int]]:
    """The columns of each table, as many as there is room for."""
    names = list(range(named_by))
    held = list(names)
    for column in range(named_by, len(header)):
        too_wide = _width(console, _table(header, rows, [*held, column])) > console.width
        if too_wide and held != names:
            yield held
            held = list(names)
        held.append(column)
    yield held


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[int]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(header[column], justify="right" if column else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(row[column] for column in columns))
    return table


def _width(console: Console, table: Table) -> int:
    return Measurement.get(console, console.options.update(max_width=_ENDLESS), table).maximum


def _print_plainly(header: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[int]) -> None:
    lines = [[row[column] for column in columns] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (f"{cell:<{widths[0]}}" if not i else f"{cell:>{widths[i]}}" for i, cell in enumerate(line))
        print("  ".join(padded).rstrip())
