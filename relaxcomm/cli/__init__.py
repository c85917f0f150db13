"""The command line: one file for each command."""

from relaxcomm.cli.app import main

__all__ = ["main"]
