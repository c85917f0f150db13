"""Lines that tell whoever started a run what it does."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
        print(wrapped(f"relaxcomm: {line}", sys.stderr), file=sys.stderr, flush=True)


def wrapped(text: str, stream: Any) -> str:
    """Text as a stream shows it whole: a terminal narrower than it has it in lines cut at spaces.

    Args:
        text: one or more lines.
        stream: to which it will be written.

    Example:
        >>> import io
        >>> wrapped("a file has its lines as they are", io.StringIO())
        'a file has its lines as they are'
    """
    try:
        columns = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (AttributeError, OSError, ValueError):  # a script's own stream, which may only write
        columns = 0
    if not columns:  # some terminals do not know how wide they are
        return text
    cut = textwrap.TextWrapper(
        columns, expand_tabs=False, replace_whitespace=False, break_long_words=False, break_on_hyphens=False
    )  # nobody can copy half a path
    return "\n".join(map(cut.fill, text.split("\n")))


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
