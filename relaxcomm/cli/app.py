"""The application that the commands belong to, and its entry point."""

from __future__ import annotations

import importlib.metadata
import io
import os
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from relaxcomm.cli.algorithms import algorithms
from relaxcomm.cli.compare import compare
from relaxcomm.cli.demo import demo
from relaxcomm.cli.doctor import doctor
from relaxcomm.cli.exit_codes import readable, warn, watch_output
from relaxcomm.cli.join import join
from relaxcomm.cli.plan_command import plan
from relaxcomm.cli.plugins import check, new_algorithm
from relaxcomm.cli.schema import schema
from relaxcomm.cli.show import show
from relaxcomm.cli.top import top
from relaxcomm.cli.train import train


class _Commands(TyperGroup):
    """Points those who ask for a list, which many programs have, to the one that there is."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in ("list", "ls"):
            ctx.fail(f"No such command {args[0]!r}. Did you mean 'algorithms'?")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Commands,
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


app.command(short_help="Train on bundled images over a simulated slow network.")(demo)
app.command(short_help="Train the configured task.")(train)
app.command(short_help="Join a run as one more worker.")(join)
app.command(short_help="Train with several algorithms and compare them.")(compare)
app.command(short_help="Predict what algorithms will cost on your network.")(plan)
app.command(short_help="List the algorithms that are installed.")(algorithms)
app.command(short_help="Show an algorithm, a primitive, or a configuration.")(show)
app.command(short_help="Print the JSON Schema of the YAML.")(schema)
app.command(short_help="Look at this machine and its network.")(doctor)
app.command(short_help="Hold a plug-in against the contract.")(check)
app.command(short_help="Make an installable package for a plug-in.")(new_algorithm)
app.command(short_help="Show a running job, one line a rank.")(top)


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
    watch_output()
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        app.rich_markup_mode = None  # no boxes in help and errors
    with readable(show_traceback=False):  # what no command has begun, such as its help
        app(prog_name="relaxcomm")
