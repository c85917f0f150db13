"""The command line: one file for each command."""

import gc


def main() -> None:
    """Run the command line.

    What imports make is there to stay: to look through it for garbage meanwhile takes a sixth of the time
    until a command begins.
    """
    gc.disable()
    try:
        from relaxcomm.cli.app import main as run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    gc.freeze()
    gc.enable()
    run()
