"""One readable message for bad input: what was got, what is allowed, what to do."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import ValidationError

from relaxcomm.errors import ConfigError


def signature_of(target: Callable[..., Any]) -> str:
    """The parameters of a class or function with their defaults, as a user would type them.

    Example:
        >>> signature_of(lambda steps=16: None)
        'steps=16'
    """
    shown = []
    for parameter in inspect.signature(target).parameters.values():
        required = parameter.default is inspect.Parameter.empty
        shown.append(parameter.name if required else f"{parameter.name}={parameter.default!r}")
    return ", ".join(shown) or "no parameters"


def closest(got: str, allowed: Iterable[str]) -> str:
    """A hint: the name that the user probably meant, and all that are allowed."""
    names = sorted(allowed)
    near = difflib.get_close_matches(got, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{hint or ';'} allowed: {', '.join(names)}"


def describe(error: ValidationError, subject: str, target: Callable[..., Any]) -> str:
    """Turn pydantic's report on the arguments of `target` into one line for each fault."""
    lines: dict[str, str] = {}  # by what is wrong: an argument of several types has a fault for each
    names = list(inspect.signature(target).parameters)
    for fault in error.errors():
        place = fault["loc"][0] if fault["loc"] else ""
        argument = names[place] if isinstance(place, int) and place < len(names) else str(place)
        if fault["type"] in ("unexpected_keyword_argument", "unexpected_positional_argument"):
            lines[argument] = f"{subject} has no parameter {argument!r}; it takes: {signature_of(target)}"
        elif fault["type"].startswith("missing"):
            lines[argument] = f"{subject} needs {argument!r}; it takes: {signature_of(target)}"
        else:
            path = ".".join((argument, *(str(part) for part in fault["loc"][1:] if _is_place(part))))
            wrong = f"{subject}: {path} = {fault['input']!r} is not allowed"
            allowed = f"; or {fault['msg']}" if wrong in lines else f"{wrong}: {fault['msg']}"
            lines[wrong] = lines.get(wrong, "") + allowed
    return "\n".join(lines.values())


def refuse_bools(subject: str, target: Callable[..., Any], values: Mapping[str, object]) -> None:
    """Refuse True and False where some numbers are allowed: they equal 1 and 0, so pydantic takes them.

    Raises: ConfigError.
    """
    hints = get_type_hints(target) if any(isinstance(value, bool) for value in values.values()) else {}
    for name, value in values.items():
        if isinstance(value, bool) and get_origin(hints.get(name)) is Literal:
            allowed = get_args(hints[name])
            if not any(one is value for one in allowed):
                shown = ", ".join(map(repr, allowed))
                raise ConfigError(f"{subject}: {name} = {value} is not allowed: write one of {shown}")


def _is_place(part: int | str) -> bool:
    """Whether a part of a fault's path leads into the value; the others name one of several types."""
    return isinstance(part, int)
