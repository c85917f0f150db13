"""The command line: one file for each command."""

import gc
import os


def main() -> None:
    """Run the command line.

    What imports make is there to stay: to look through it for garbage meanwhile takes a sixth of the time
    until a command begins.
    """
    # Errors here say what becomes of a store that ends; torch, which reads this once, adds pages of frames.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    gc.disable()
    try:
        from relaxcomm.cli.app import main as run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    gc.freeze()
    gc.enable()
    run()
