"""The page of the command line: every command with its options, as the commands themselves declare them."""

from __future__ import annotations

import inspect

import typer
import typer.cli

from relaxcomm.cli.app import app, imported, main

_ABOUT = """\
# Command line

The package brings the command `relaxcomm`; `python -m relaxcomm` is the same. CONFIG is a YAML file,
whose keys [Configuration](configuration.md) lists. `relaxcomm COMMAND --help` shows the same text.
"""


def page() -> str:
    """The page."""
    group = typer.main.get_command(app)
    with typer.Context(group, info_name="relaxcomm") as context:
        commands = {name: imported(name) for name in group.list_commands(context)}
        rows = [f"| [`{name}`](#relaxcomm-{name}) | {_summary(one)} |" for name, one in commands.items()]
        parts = [
            typer.cli.get_docs_for_click(obj=one, ctx=context, indent=1, name=name, call_prefix="relaxcomm")
            for name, one in commands.items()
        ]
    codes = (inspect.getdoc(main) or "").partition("exit codes: ")[2].rstrip(".")
    return "\n".join((_ABOUT, "| command | |", "|---|---|", *rows, f"\nExit codes: {codes}.\n", *parts))


def _summary(command: typer.core.TyperCommand) -> str:
    return inspect.cleandoc(command.help or "").split("\n\n")[0].replace("\n", " ")
