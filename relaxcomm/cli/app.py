"""The application that the commands belong to, and its entry point."""

from __future__ import annotations

import importlib.metadata
import io
import os
import pkgutil
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from relaxcomm.cli.exit_codes import readable, warn, watch_output
from relaxcomm.cli.importing import importing

_COMMANDS = {
    "demo": ("demo:demo", "Train on bundled images over a simulated slow network."),
    "train": ("train:train", "Train the configured task."),
    "join": ("join:join", "Join a run as one more worker."),
    "compare": ("compare:compare", "Train with several algorithms and compare them."),
    "plan": ("plan_command:plan", "Predict what algorithms will cost on your network."),
    "algorithms": ("algorithms:algorithms", "List the algorithms that are installed."),
    "show": ("show:show", "Show an algorithm, a primitive, or a configuration."),
    "schema": ("schema:schema", "Print the JSON Schema of the YAML."),
    "doctor": ("doctor:doctor", "Look at this machine and its network."),
    "check": ("plugins:check", "Hold a plug-in against the contract."),
    "new-algorithm": ("plugins:new_algorithm", "Make an installable package for a plug-in."),
    "top": ("top:top", "Show a running job, one line a rank."),
}
"""Where each is, and what the list says of it: what it imports takes seconds."""


class _Commands(TyperGroup):
    """Commands that are imported when they are called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in ("list", "ls"):  # which many programs have
            ctx.fail(f"No such command {args[0]!r}. Did you mean 'algorithms'?")
        name, _, others = super().resolve_command(ctx, args)
        return name, imported(str(name), self.rich_markup_mode), others


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


for _name, (_, _said) in _COMMANDS.items():
    app.command(_name, short_help=_said)(lambda: None)


def imported(name: str, rich_markup_mode: Any = None) -> Any:
    """A command, with its options."""
    with importing():
        command = pkgutil.resolve_name(f"relaxcomm.cli.{_COMMANDS[name][0]}")
    alone = typer.Typer(add_completion=False, rich_markup_mode=rich_markup_mode)
    alone.command(name)(command)
    made = typer.main.get_command(alone)
    if (flag := made.get_help_option(typer.Context(made))) is not None:
        flag.metavar = ""  # as of our own flags: typer writes <bool>
    return made


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
    with readable("--traceback" in sys.argv):  # what no command has begun, such as its imports, and help
        app(prog_name="relaxcomm")
