"""The command line: one file for each command."""

import gc
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


def main() -> None:
    """Run the command line."""
    # Errors here say what becomes of a store that ends; torch, which reads this once, adds pages of frames.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    with importing():
        from relaxcomm.cli.app import main as run
    run()


@contextmanager
def importing() -> Iterator[None]:
    """For imports: an interrupt ends the process, and nothing is looked through for garbage.

    Torch would swallow what an interrupt raises while it looks for NumPy. What imports make is there to stay:
    to look through it takes a sixth of their time.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        signal.signal(signal.SIGINT, before)
