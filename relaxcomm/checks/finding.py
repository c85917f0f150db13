"""What a check has found."""

from __future__ import annotations

import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import FrozenInstanceError, dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import torch

from relaxcomm.errors import CompositionWarning, RelaxcommError, worded
from relaxcomm.system.time_limit import ENDINGS, within

_OTHERS = {"relaxcomm", "torch", "numpy", "networkx", "pydantic", *sys.stdlib_module_names}


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    Args:
        subject: what was checked.
        check: the check's name.
        fault: what is wrong, or None.
        ended: whether it ended by itself; what comes after one that did not would not, either.
        holds: what the check holds it to, in one sentence.

    Example:
        >>> from relaxcomm import Finding
        >>> print(Finding("top_k", "loss", fault="declares to lose 0.5 ||x||^2 at most, lost 0.6"))
        top_k loss: FAILED: declares to lose 0.5 ||x||^2 at most, lost 0.6
    """

    subject: str
    check: str
    fault: str | None = None
    ended: bool = True
    holds: str = ""

    def __str__(self) -> str:
        outcome = f"ok. {self.holds}".removesuffix(". ") if self.fault is None else f"FAILED: {self.fault}"
        return f"{self.subject} {self.check}: {outcome}"


class Broken(Exception):
    """A check's complaint, in one sentence that names what was declared and what was seen."""


def expect(holds: bool, complaint: str) -> None:
    """Raise Broken unless something holds."""
    if not holds:
        raise Broken(complaint)


def told(error: BaseException) -> str:
    """What an error says and, if nobody worded it for users, the line of the plug-in from which it came."""
    if isinstance(error, RelaxcommError):
        return str(error)
    package, place = "", ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        found = _package(frame)
        package = package or (found if is_plugin(frame) else "")
        made = frame.f_code.co_filename.startswith("<")  # as dataclasses do
        if package and found == package and not made:  # and not what it has called
            place = f" ({Path(frame.f_code.co_filename).name}:{line})"
    remedy = (
        "; what a primitive keeps lies in a slot of `state`" if isinstance(error, FrozenInstanceError) else ""
    )
    return worded(error) + place + remedy


def is_plugin(frame: FrameType) -> bool:
    """Whether what runs there is neither relaxcomm's nor that of a library."""
    return _package(frame) not in _OTHERS


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Have torch share no operation out: of tensors this small its threads would only wait for each other."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(number)


def unending(subject: str, check: str, limit_seconds: float) -> Finding:
    """What is said of a check that was ended at its limit."""
    fault = f"did not end within {limit_seconds:g} s, so the checks after it were left out: "
    return Finding(subject, check, f"{fault}does a loop have no end?", ended=False)


def attempt(subject: str, check: str, run: Callable[[], None], limit_seconds: float) -> Finding:
    """Run one check; whatever it raises is its fault, and so is that it does not end."""
    begin = time.monotonic()
    try:
        with warnings.catch_warnings(), _one_thread():
            warnings.simplefilter("ignore", CompositionWarning)
            within(limit_seconds, run, end=True)
    except Broken as broken:
        return Finding(subject, check, str(broken))
    except TimeoutError as error:
        if time.monotonic() - begin < limit_seconds:  # its own
            return Finding(subject, check, f"TimeoutError: {error}")
        return unending(subject, check, limit_seconds)
    except ENDINGS:
        raise
    except BaseException as error:  # a plug-in may raise anything
        return Finding(subject, check, told(error))
    return Finding(subject, check, holds=_held(run))


def _held(run: Callable[[], None]) -> str:
    """What a check's docstring begins with."""
    told = run.func if isinstance(run, partial) else run
    return " ".join((told.__doc__ or "").partition("\n\n")[0].split())
