"""Calls of a task's functions: what goes wrong in them is told with its place."""

from __future__ import annotations

import functools
import inspect
import math
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from relaxcomm.errors import ConfigError, NonFiniteError


@contextmanager
def named(what: str, function: Callable[..., Any]) -> Iterator[None]:
    """Note on an exception that it came from a task's function, and from which of its lines.

    Args:
        what: the function's name in `Task`.
        function: what is called inside.
    """
    try:
        yield
    except Exception as error:
        file, line = _definition(function)
        lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == file]
        error.add_note(f"in the task's {what}, {file}:{lines[0] if lines else line}")
        raise


def checked_measure(value: object, evaluate: Callable[..., Any]) -> float:
    """What `evaluate` returned, as a number.

    Raises: ConfigError if it is none, NonFiniteError if it is NaN, for a model that the engine has looked at.
    """
    try:
        measure = float(value)  # type: ignore[arg-type]  # it is tried
    except (TypeError, ValueError, RuntimeError):  # the last from tensors of several entries
        raise ConfigError(f"{_where('evaluate', evaluate)} returned {value!r}; it must be a number") from None
    if math.isnan(measure):
        raise NonFiniteError(
            f"{_where('evaluate', evaluate)} returned NaN, although the model's parameters and buffers are "
            "finite: what it makes of them overflows, or it measures nothing; lower the rate, or mend it"
        )
    return measure


def checked_loss(value: Any, loss: Callable[..., Any]) -> torch.Tensor:
    """What `loss` returned, as a scalar that has a gradient.

    Raises: ConfigError if it is none.
    """
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.requires_grad:
        how = "it must be a tensor of one entry that depends on the model's parameters"
        raise ConfigError(f"{_where('loss', loss)} returned {value!r}; {how}")
    return value


def _where(what: str, function: Callable[..., Any]) -> str:
    file, line = _definition(function)
    return f"the task's {what}, at {file}:{line},"


def called_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """What is called of a function, a method, a partial, a class or an object."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if inspect.isroutine(function):
        return function
    return function.__init__ if inspect.isclass(function) else function.__call__  # type: ignore[operator]


def _definition(function: Callable[..., Any]) -> tuple[str, int]:
    """File and line of it."""
    code = getattr(called_function(function), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else (repr(function), 0)
