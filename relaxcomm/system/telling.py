"""Lines that tell whoever started a run what it does."""

from __future__ import annotations

import sys


def tell(line: str) -> None:
    """Write a line to standard error, at once.

    Example:
        >>> import contextlib, io
        >>> with contextlib.redirect_stderr(io.StringIO()) as written:
        ...     tell("goes on from saved/step-100")
        >>> written.getvalue()
        'relaxcomm: goes on from saved/step-100\\n'
    """
    print(f"relaxcomm: {line}", file=sys.stderr, flush=True)
