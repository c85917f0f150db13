"""Lines that tell whoever started a run what it does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_silences: list[None] = []


def tell(line: str) -> None:
    """Write a line to standard error, at once.

    Example:
        >>> import contextlib, io
        >>> with contextlib.redirect_stderr(io.StringIO()) as written:
        ...     tell("goes on from saved/step-100")
        >>> written.getvalue()
        'relaxcomm: goes on from saved/step-100\\n'
    """
    if not _silences:
        print(f"relaxcomm: {line}", file=sys.stderr, flush=True)


@contextmanager
def silence() -> Iterator[None]:
    """Have nothing told in here, by any thread: of runs that nobody has started.

    Example:
        >>> import contextlib, io
        >>> with contextlib.redirect_stderr(io.StringIO()) as written, silence():
        ...     tell("goes on from saved/step-100")
        >>> written.getvalue()
        ''
    """
    _silences.append(None)
    try:
        yield
    finally:
        _silences.pop()
