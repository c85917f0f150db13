"""Warnings name the line of the user's code that led to them."""

from __future__ import annotations

import sys
import warnings

_CALL_US = {"contextlib", "functools", "importlib", "pydantic", "torch"}  # for the user
_INSIDE = frozenset({"relaxcomm", "relaxcomm_algorithms", *_CALL_US})


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the innermost line outside relaxcomm, and outside what calls it for the user, as torch does.

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
    frame = sys._getframe(1)
    while frame.f_back is not None and _module(frame.f_globals).partition(".")[0] in _INSIDE:
        frame = frame.f_back
    place, known = (frame.f_code.co_filename, frame.f_lineno), frame.f_globals
    shown = known.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, *place, module=_module(known), registry=shown)


def _module(names: dict[str, object]) -> str:
    return str(names.get("__name__"))
