"""`relaxcomm doctor`: what an engineer asks first."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from relaxcomm import config
from relaxcomm.cli.exit_codes import readable
from relaxcomm.cli.job import Workers, is_worker
from relaxcomm.cli.launcher import launch
from relaxcomm.cli.options import Seconds, Traceback, written
from relaxcomm.doctor import exposure, interfaces, machine, peers
from relaxcomm.doctor.diagnosis import Finding
from relaxcomm.errors import ConfigError
from relaxcomm.system.environment import whole_number

_BEGIN_SECONDS = 60.0  # that workers may take to begin, beside the wait for each other
_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def doctor(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="YAML file, to see what it asks for.", show_default=False),
    ] = None,
    workers: Workers = None,
    timeout: Annotated[
        float,
        typer.Option(parser=written(Seconds), metavar="SECONDS", help="The longest wait for another worker."),
    ] = 30,
    traceback: Traceback = False,
) -> None:
    """Look at this machine, its network and, under torchrun, srun or with --workers, at the links.

    Each finding is ok, a warning or a problem, with what to do. Exit code 1 if there is a problem.

    On several hosts start it as the job itself: `torchrun OPTIONS -m relaxcomm doctor`
    """
    with readable(traceback):
        if is_worker() and workers is not None:
            raise ConfigError("--workers starts local workers; under torchrun or srun leave it out")
        settings = None if path is None else config.load(path)
        found = [*examine(workers, timeout, settings, verbose=traceback), *exposure.findings(settings)]
        if os.environ.get("RANK", "0") != "0":  # rank 0 speaks for all that reach the master
            found = [one for one in found if _is_fatal(one)]
        show(found)
        if any(one.level == "problem" for one in found):
            raise SystemExit(1)


def examine(
    workers: int | None, timeout_seconds: float, settings: config.Config | None, *, verbose: bool
) -> list[Finding]:
    """All findings that this process can make; the workers that a configuration asks for are not started."""
    asked = 1 if settings is None or is_worker() else settings.workers
    local = whole_number("LOCAL_WORLD_SIZE", workers or asked, least=1)
    found = machine.findings(local) + interfaces.findings()
    fatal = any(map(_is_fatal, found))
    if is_worker() and not fatal:
        return found + peers.findings(found, timeout_seconds)
    if workers is not None and not fatal:
        look = functools.partial(peers.findings, (), timeout_seconds)
        begin_seconds = _BEGIN_SECONDS + timeout_seconds
        return found + launch(look, workers, verbose=verbose, begin_seconds=begin_seconds)
    return found


def _is_fatal(one: Finding) -> bool:
    """Whether it keeps this process from meeting the others."""
    return one.level == "problem" and one.name in ("environment", "master", "backends")


def show(found: Sequence[Finding]) -> None:
    """Print the findings: a table on a terminal, plain lines elsewhere."""
    console = Console()
    if not console.is_terminal:
        for one in found:
            print(f"{one.name}  {one.level}: {one.text}" + (f"; {one.remedy}" if one.remedy else ""))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for one in found:
        text = Text(one.text)
        if one.remedy:
            text.append(f"\n→ {one.remedy}", style="bold")
        table.add_row(Text(one.level, style=_STYLES[one.level]), one.name, text)
    console.print(table)
    counts = {level: sum(one.level == level for one in found) for level in ("problem", "warning")}
    console.print(
        ", ".join(f"{count} {level}{'s' * (count != 1)}" for level, count in counts.items()), highlight=False
    )
