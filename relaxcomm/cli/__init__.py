"""The command line: one file for each command."""

import os

from relaxcomm.cli.importing import importing


def main() -> None:
    """Run the command line."""
    # Errors here say what becomes of a store that ends; torch, which reads this once, adds pages of frames.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    with importing():
        from relaxcomm.cli.app import main as run
    run()
