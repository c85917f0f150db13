"""`relaxcomm top`: a running job in a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from relaxcomm.cli.exit_codes import RunFailed, readable
from relaxcomm.cli.options import Traceback
from relaxcomm.cli.ranks_view import History, Row, fitting, sparkline, table
from relaxcomm.monitoring.metrics_settings import DEFAULT_PORT
from relaxcomm.monitoring.scraping import Reader
from relaxcomm.system.telling import tell

_PERIOD_SECONDS = 1.0
_STYLES = {"slowest": "yellow", "stands": "magenta", "silent": "bold red"}


def top(
    url: Annotated[
        str, typer.Argument(metavar="URL", help=f"Of rank 0's metrics; port {DEFAULT_PORT} without one.")
    ] = "127.0.0.1",
    traceback: Traceback = False,
) -> None:
    """Show a running job, one line a rank, once a second; Ctrl-C ends.

    The job's configuration needs `metrics`. Off a terminal, shows one second of it as plain lines.
    """
    with readable(traceback):
        watch = Watch(Reader(url))
        watch.look(first=True)
        console = Console()
        if not console.is_terminal:
            time.sleep(_PERIOD_SECONDS)
            watch.look()
            show_plain(watch.rows)
            if watch.silence is not None:
                tell(watch.silence)
            return
        try:
            with Live(watch.shown(console.width), console=console, screen=True, auto_refresh=False) as live:
                while True:
                    time.sleep(_PERIOD_SECONDS)
                    watch.look()
                    live.update(watch.shown(console.width), refresh=True)
        except KeyboardInterrupt:
            console.print(watch.shown(console.width))


class Watch:
    """What is known of the job.

    Args:
        reader: of its exporters.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._history = History()
        self._facts: dict[str, str] = {}
        self._addresses: dict[int, str] = {}
        self._heard = 0.0  # the last answer of rank 0
        self._silent_since: float | None = None
        self.rows: Sequence[Row] = ()

    def look(self, *, first: bool = False) -> None:
        """Ask all ranks.

        Raises: RunFailed if the first look finds nobody.
        """
        now = time.monotonic()
        try:
            self._addresses = self._reader.ranks()
            self._heard, self._silent_since = now, None
        except (OSError, ValueError) as error:
            if first:
                raise RunFailed(
                    f"no job answers at {self._reader.url} ({error}); its configuration needs "
                    "'metrics: {}', and the URL is that of rank 0"
                ) from None
            self._silent_since = self._silent_since or self._heard
        found = self._reader.read(self._addresses, now)
        if found or self._silent_since is None:
            self.rows = self._history.rows(sorted(self._addresses), found)
        for one in found.values():
            self._facts = dict(one.facts)

    @property
    def silence(self) -> str | None:
        """What to say while rank 0 does not answer, such as after the end of the run."""
        if self._silent_since is None:
            return None
        seconds = time.monotonic() - self._silent_since
        return f"rank 0 has not answered for {seconds:.0f} s; the last that is known"

    def shown(self, width: int) -> Group:
        """A heading and the table; the shape of the losses takes what is left of the width."""
        facts = self._facts
        heading = Text(f"{facts.get('run', '')}  ", style="bold")
        heading.append(f"{facts.get('algorithm', '')} on {facts.get('world_size', '?')} ranks", style="dim")
        for name, measure in next((row.evaluations for row in self.rows if row.evaluations), {}).items():
            heading.append(f"  {name} {measure:#.4g}")
        drawn = Table(box=None, pad_edge=False, header_style="dim")
        headings, made = table(self.rows)
        columns, left = fitting(list(zip(headings, *made, strict=True)), width)
        for name, *_ in columns:
            drawn.add_column(name, justify="right", no_wrap=True)
        drawn.add_column("", no_wrap=True)
        for row, texts in zip(self.rows, list(zip(*columns, strict=True))[1:], strict=True):
            losses = row.losses[-left:] if left > 0 else ()
            drawn.add_row(*texts, sparkline(losses), style=_STYLES.get(row.note, ""))
        last = Text("Ctrl-C ends", style="dim")
        if self.silence is not None:
            last = Text(self.silence, style="red")
        return Group(heading, drawn, last)


def show_plain(rows: Sequence[Row]) -> None:
    """One line a rank."""
    headings, made = table(rows, sorted({name for row in rows for name in row.evaluations}))
    for cells in made:
        parts = (f"{name} {cell}".strip() for name, cell in zip(headings, cells, strict=True) if cell)
        print("  ".join(parts))
