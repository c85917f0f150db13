"""Warnings name the line of the user's code that led to them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_CALL_US = {"click", "contextlib", "dataclasses", "functools", "importlib", "pydantic", "torch", "typer"}
"""For the user."""
_INSIDE = frozenset({"relaxcomm", "relaxcomm_algorithms", *_CALL_US})
_COMMANDS = frozenset({"relaxcomm.cli.app", "relaxcomm.cli.fork_server"})
"""Where commands, and the workers that they start, begin."""

_told_before: ContextVar[bool] = ContextVar("told_before", default=False)


@contextmanager
def told_before() -> Iterator[None]:
    """Where what has been warned of is made again, and nobody is warned."""
    token = _told_before.set(True)
    try:
        yield
    finally:
        _told_before.reset(token)


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the innermost line outside relaxcomm, and outside what calls it for the user, as torch does;
    where a command has led to it, at the command's first.

    Args:
        message: what is wrong, and what to do.
        category: of the warning.

    Example:
        >>> import warnings
        >>> from relaxcomm import CompositionWarning
        >>> with warnings.catch_warnings(record=True) as told:
        ...     warnings.simplefilter("always")
        ...     warn("a warning", CompositionWarning)
        >>> told[0].category.__name__, str(told[0].message)
        ('CompositionWarning', 'a warning')
    """
    if _told_before.get():
        return
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_inside(_module(frame.f_globals)):
        frame = frame.f_back
    place, known = (frame.f_code.co_filename, frame.f_lineno), frame.f_globals
    shown = known.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, *place, module=_module(known), registry=shown)


def _is_inside(module: str) -> bool:
    return module.partition(".")[0] in _INSIDE and module not in _COMMANDS


def _module(names: dict[str, object]) -> str:
    return str(names.get("__name__"))
