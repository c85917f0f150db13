"""`relaxcomm join`: one more worker for an elastic run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from relaxcomm import config
from relaxcomm.cli import invitation
from relaxcomm.cli.exit_codes import readable
from relaxcomm.cli.options import Traceback
from relaxcomm.cli.table import show
from relaxcomm.errors import ConfigError
from relaxcomm.fields.validation import meant, shown
from relaxcomm.system.environment import JOIN, RANK_VARIABLES
from relaxcomm.system.telling import tell
from relaxcomm.tasks.task_loader import find_task
from relaxcomm.training import trainer

_BEGIN_SECONDS = 300.0


def join(
    address: Annotated[
        str,
        typer.Argument(metavar="ADDRESS", help="HOST:PORT, as the run has printed it.", show_default=False),
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND", help="Instead: a script of yours that attaches.", show_default=False
        ),
    ] = None,
    traceback: Traceback = False,
) -> None:
    """Join a run as one more worker, with its configuration and the task of that name on this machine.

    The others admit it when they synchronise, and hand it their state; it trains until they end.
    """
    with readable(traceback, interrupted="the others go on without this worker"):
        store = invitation.reach(address)
        for name in RANK_VARIABLES:
            os.environ.pop(name, None)
        os.environ[JOIN] = address
        if command:
            invitation.await_begin(store, address, _BEGIN_SECONDS)
            _become(command)
        loaded = config.load(invitation.configuration_in(store, address))
        tell(f"asks to join {address}")
        find_task(loaded.task)
        invitation.await_begin(store, address, loaded.timeout_seconds)
        show([trainer.train(loaded).result])


def _become(command: list[str]) -> None:
    """Go on as another program.

    Raises: ConfigError if there is none of that name.
    """
    sys.stdout.flush()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        name, is_there = command[0], Path(command[0]).is_file()
        hint = f"; the file is there, but no program: write python {name}" if is_there else _near(name)
        raise ConfigError(f"cannot start {shown(name)}: {error.strerror}{hint}") from None


def _near(name: str) -> str:
    """A hint: the program whose name is closest."""
    folders = [Path(folder) for folder in os.get_exec_path() if Path(folder).is_dir()]
    return meant(name, (one.name for folder in folders for one in folder.iterdir()))
