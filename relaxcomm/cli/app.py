"""The application that the commands belong to, and its entry point."""

from __future__ import annotations

import importlib.metadata
import io
import os
import sys
import warnings
from typing import Annotated

import typer

from relaxcomm.cli.algorithms import algorithms
from relaxcomm.cli.compare import compare
from relaxcomm.cli.demo import demo
from relaxcomm.cli.doctor import doctor
from relaxcomm.cli.exit_codes import warn
from relaxcomm.cli.join import join
from relaxcomm.cli.plan_command import plan
from relaxcomm.cli.plugins import check, new_algorithm
from relaxcomm.cli.schema import schema
from relaxcomm.cli.show import show
from relaxcomm.cli.top import top
from relaxcomm.cli.train import train

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",  # joins the lines of a paragraph
    pretty_exceptions_enable=False,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"relaxcomm {importlib.metadata.version('relaxcomm')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", metavar="", callback=_say_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Train data-parallel PyTorch models over slow networks."""


app.command()(demo)
app.command()(train)
app.command()(join)
app.command()(compare)
app.command()(plan)
app.command()(algorithms)
app.command()(show)
app.command()(schema)
app.command()(doctor)
app.command()(check)
app.command()(new_algorithm)
app.command()(top)


def _complete_streams() -> None:
    """Open streams that the shell has closed, and let the others take what they have no letters for."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # as long as the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def main() -> None:
    """Run the command line; exit codes: 0 done, 1 the run failed, 2 bad input, 130 interrupted."""
    warnings.showwarning = warn
    _complete_streams()
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        app.rich_markup_mode = None  # no boxes in help and errors
    app(prog_name="relaxcomm")
