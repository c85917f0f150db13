"""From exceptions to one readable message and an exit code."""

from __future__ import annotations

import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeVar

from relaxcomm.errors import CompositionError, ConfigError, PluginError, RelaxcommError, TopologyError, worded
from relaxcomm.system.telling import tell, wrapped

T = TypeVar("T")

BAD_INPUT = (ConfigError, CompositionError, TopologyError, PluginError)
_PACKAGE = str(Path(__file__).parents[1])


class RunFailed(Exception):
    """A worker failed.

    Args:
        message: what to tell the user.
        details: the worker's traceback, if it has failed by an error.
        bad_input: whether the input is to blame.
    """

    def __init__(self, message: str, details: str = "", *, bad_input: bool = False) -> None:
        super().__init__(message)
        self.details = details
        self.bad_input = bad_input


class OutputFailed(Exception):
    """What a command says could not be written."""


def watch_output() -> None:
    """Have what standard output cannot take told apart from what else fails."""
    for name in ("write", "flush"):
        setattr(sys.stdout, name, _watched(getattr(sys.stdout, name)))


def _watched(act: Callable[..., T]) -> Callable[..., T]:
    def acts(*args: Any) -> T:
        try:
            return act(*args)
        except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough; click ends quietly
            raise
        except OSError as error:
            raise OutputFailed(f"cannot write to standard output: {error.strerror}") from None

    return acts


def describe(error: BaseException) -> str:
    """The message and notes of `error`; for an error that is not relaxcomm's own also its type and place."""
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    if isinstance(error, RelaxcommError | RunFailed):
        return f"{error}{notes}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    where = f" (at {frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    what = worded(error)
    if isinstance(error, SystemExit):
        what = f"sys.exit({'' if error.code is None else repr(error.code)}) before the run was over"
    return f"{what}{where}{notes}"


def _is_users(filename: str) -> bool:
    return not filename.startswith(_PACKAGE) and "site-packages" not in filename and filename[0] != "<"


def warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """One line for a warning of relaxcomm's own, the usual two for any other; replaces `showwarning`."""
    is_ours = filename.startswith(_PACKAGE)
    stream = file or sys.stderr
    shown = (
        wrapped(f"relaxcomm: warning: {message}\n", stream)
        if is_ours
        else warnings.formatwarning(message, category, filename, lineno, line)
    )
    stream.write(shown)


@contextmanager
def readable(show_traceback: bool, prefix: str = "", interrupted: str = "") -> Iterator[None]:
    """Turn whatever a command raises into a message on standard error and the exit code.

    Args:
        show_traceback: print it, too.
        prefix: of the message.
        interrupted: what an interrupt means to the run, beside what its notes say.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # see above
        raise
    except OutputFailed as error:
        tell(f"error: {error}")
        raise SystemExit(1) from None
    except _interrupts() as error:
        notes = getattr(error, "__notes__", ())
        tell("; ".join(filter(None, ("interrupted", interrupted, *notes))))
        raise SystemExit(128 + getattr(error, "sigval", signal.SIGINT)) from None
    except Exception as error:
        bad_input = isinstance(error, BAD_INPUT) or (isinstance(error, RunFailed) and error.bad_input)
        trace = error.details if isinstance(error, RunFailed) else traceback.format_exc()
        if show_traceback and trace:
            print(trace, file=sys.stderr)
        tell(f"error: {prefix}{describe(error)}")
        if trace and not (show_traceback or bad_input):
            tell("--traceback shows where it happened")
        raise SystemExit(2 if bad_input else 1) from None


def _interrupts() -> tuple[type[BaseException], ...]:
    """Ctrl-C, and what torch's launcher raises at a signal, where it has been imported."""
    torch = sys.modules.get("torch.distributed.elastic.multiprocessing")
    return (KeyboardInterrupt,) if torch is None else (KeyboardInterrupt, torch.SignalException)
