"""One readable message for bad input: what was got, what is allowed, what to do."""

from __future__ import annotations

import difflib
import inspect
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import ValidationError

from relaxcomm.errors import ConfigError

_CLOSEST_CHARACTERS = 100
_MOST_FAULTS = 8


class _Shown(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write out a number of many thousand digits.
        return repr(x) if x.bit_length() <= 256 else f"a number of {x.bit_length():,} bits"


_shown = _Shown()
_shown.maxstring = _shown.maxother = 120
_shown.maxlevel = 5
_shown.maxlist = _shown.maxtuple = _shown.maxset = _shown.maxdict = 8


def shown(value: object) -> str:
    """What was got, as short as it must be to be read.

    Example:
        >>> shown([1.5, 2, [3] * 1000])
        '[1.5, 2, [3, 3, 3, 3, 3, 3, 3, 3, ...]]'
    """
    return _shown.repr(value)


def few(faults: Sequence[str]) -> str:
    """The first faults, one a line, and how many more there are."""
    more = [f"and {len(faults) - _MOST_FAULTS} more"] if len(faults) > _MOST_FAULTS else []
    return "\n".join([*faults[:_MOST_FAULTS], *more])


def signature_of(target: Callable[..., Any]) -> str:
    """The parameters of a class or function with their defaults, as a user would type them.

    Example:
        >>> signature_of(lambda steps=16: None)
        'steps=16'
    """
    parameters = []
    for parameter in inspect.signature(target).parameters.values():
        required = parameter.default is inspect.Parameter.empty
        parameters.append(parameter.name if required else f"{parameter.name}={parameter.default!r}")
    return ", ".join(parameters) or "no parameters"


def closest(got: str, allowed: Iterable[str]) -> str:
    """A hint: the name that the user probably meant, and all that are allowed."""
    names = sorted(allowed)
    return f"{meant(got, names) or ';'} allowed: {', '.join(names)}"


def meant(got: str, names: Iterable[str]) -> str:
    """A hint: the name that is closest, in upper or lower case; "" if none is close.

    Example:
        >>> meant("tpo_k", ["top_k", "sign"]), meant("x", ["top_k", "sign"])
        ("; did you mean 'top_k'?", '')
    """
    lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(got[:_CLOSEST_CHARACTERS].lower(), lower, n=1)
    return f"; did you mean {lower[near[0]]!r}?" if near else ""


def refusal(error: ValidationError, subject: str, target: Callable[..., Any]) -> ConfigError:
    """Turn pydantic's report on the arguments of `target` into an error with one line for each fault.

    Its key is the argument, if one alone is wrong.
    """
    lines: dict[str, str] = {}  # by what is wrong: an argument of several types has a fault for each
    faulty = set()
    names = list(inspect.signature(target).parameters)
    for fault in error.errors():
        place = fault["loc"][0] if fault["loc"] else ""
        argument = names[place] if isinstance(place, int) and place < len(names) else str(place)
        if fault["type"] == "unexpected_positional_argument":
            takes = f"at most {place} positional arguments" if place else "keyword arguments only"
            return ConfigError(f"{subject} takes {takes}: {signature_of(target)}")
        faulty.add(argument)
        if fault["type"] == "unexpected_keyword_argument":
            lines[argument] = (
                f"{subject} has no parameter {shown(argument)}{meant(argument, names) or ';'} it takes: "
                f"{signature_of(target)}"
            )
        elif fault["type"].startswith("missing"):
            lines[argument] = f"{subject} needs {argument!r}; it takes: {signature_of(target)}"
        else:
            path = ".".join((argument, *(str(part) for part in fault["loc"][1:] if _is_place(part))))
            wrong = f"{subject}: {path} = {shown(fault['input'])} is not allowed"
            said = f"{fault['msg']}{_instead_of(fault['input'])}"
            allowed = f"; or {said}" if wrong in lines else f"{wrong}: {said}"
            lines[wrong] = lines.get(wrong, "") + allowed
    refused = ConfigError(few(list(lines.values())))
    refused.key = tuple(faulty) if len(faulty) == 1 else ()
    return refused


def _instead_of(got: object) -> str:
    """What to do where an object belongs."""
    if inspect.isclass(got):
        return f"; make one: {got.__name__}(…)"
    return "; write a class, with @frozen above it, not a function" if inspect.isroutine(got) else ""


def refuse_bools(subject: str, target: Callable[..., Any], values: Mapping[str, object]) -> None:
    """Refuse True and False where some numbers are allowed: they equal 1 and 0, so pydantic takes them.

    Raises: ConfigError.
    """
    hints = get_type_hints(target) if any(isinstance(value, bool) for value in values.values()) else {}
    for name, value in values.items():
        if isinstance(value, bool) and get_origin(hints.get(name)) is Literal:
            allowed = get_args(hints[name])
            if not any(one is value for one in allowed):
                listed = ", ".join(map(repr, allowed))
                raise ConfigError(f"{subject}: {name} = {value} is not allowed: write one of {listed}")


def _is_place(part: int | str) -> bool:
    """Whether a part of a fault's path leads into the value; the others name one of several types."""
    return isinstance(part, int)
