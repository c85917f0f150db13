"""`relaxcomm algorithms`: what is installed."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from relaxcomm.cli.exit_codes import readable
from relaxcomm.cli.options import Traceback
from relaxcomm.config import registry


def algorithms(traceback: Traceback = False) -> None:
    """List every algorithm that was found, with its parameters and their defaults."""
    with readable(traceback):
        _print_algorithms()


def _print_algorithms() -> None:
    entries = [registry.algorithms()[name] for name in sorted(registry.algorithms())]
    console = Console()
    if not console.is_terminal:
        for entry in entries:
            print(f"{entry.name}  ({entry.parameters})  {entry.summary}")
        return
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("algorithm", no_wrap=True)
    table.add_column("what it does, and its parameters")
    for entry in entries:  # below each other: beside each other there is no room for their words
        table.add_row(entry.name, Text.assemble(entry.summary, "\n", (entry.parameters, "dim")))
    console.print(table)
