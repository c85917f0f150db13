"""What imports of commands need."""

import gc
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


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
