"""What a check has found."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from relaxcomm.errors import CompositionWarning, DeprecatedWarning, RelaxcommError


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Args:
        subject: what was checked.
        check: the check's name.
        fault: what is wrong, or None.
    """

    subject: str
    check: str
    fault: str | None = None

    def __str__(self) -> str:
        return f"{self.subject} {self.check}: {'ok' if self.fault is None else f'FAILED: {self.fault}'}"


class Broken(Exception):
    """A check's complaint, in one sentence that names what was declared and what was seen."""


def expect(holds: bool, complaint: str) -> None:
    """Raise Broken unless something holds."""
    if not holds:
        raise Broken(complaint)


def attempt(subject: str, check: str, run: Callable[[], None]) -> Finding:
    """Run one check; whatever it raises is its fault."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CompositionWarning)
            warnings.simplefilter("ignore", DeprecatedWarning)  # what is to go must work until then
            run()
    except Broken as broken:
        return Finding(subject, check, str(broken))
    except Exception as error:  # a plug-in may raise anything
        kind = "" if isinstance(error, RelaxcommError) else f"{type(error).__name__}: "
        return Finding(subject, check, f"{kind}{error}")
    return Finding(subject, check)
