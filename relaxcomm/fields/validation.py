"""One readable message for bad input: what was got, what is allowed, what to do."""

from __future__ import annotations

import difflib
import inspect
import math
import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ErrorType

from relaxcomm.errors import ConfigError
from relaxcomm.fields.allowed import KEY, OR_SCHEDULE, in_words, is_choice, part_of

_CLOSEST_CHARACTERS = 100
_MOST_NAMES = 20  # that are listed beside the one that was probably meant
_MOST_FAULTS = 8
_LARGEST_EXACT = 2**53  # whole number up to which a float has all
_PYDANTICS = frozenset(get_args(ErrorType)) - {"value_error", "assertion_error"}
"""Kinds of faults that pydantic finds itself; the others have words of their own."""


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
    made = {
        field.name: field.default_factory for field in getattr(target, "__dataclass_fields__", {}).values()
    }
    parameters = []
    for name, parameter in inspect.signature(target).parameters.items():
        default = made[name]() if callable(made.get(name)) else parameter.default
        parameters.append(name if default is inspect.Parameter.empty else f"{name}={default!r}")
    return ", ".join(parameters) or "no parameters"


def closest(got: str, allowed: Iterable[str]) -> str:
    """A hint: the name that the user probably meant, and all that are allowed, unless they fill a screen."""
    names = sorted(allowed)
    near = meant(got, names)
    if near and len(names) > _MOST_NAMES:
        return near
    return f"{near or ';'} allowed: {', '.join(names)}"


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
    names = list(inspect.signature(target).parameters)
    unknown, missing = [], []
    wrong: dict[tuple[int | str, ...], str] = {}  # an argument of several types has a fault for each
    for fault in error.errors():
        place = fault["loc"][0] if fault["loc"] else ""
        argument = names[place] if isinstance(place, int) and place < len(names) else str(place)
        if fault["type"] == "unexpected_positional_argument":
            takes = f"at most {place} positional arguments" if place else "keyword arguments only"
            return ConfigError(f"{subject} takes {takes}: {signature_of(target)}")
        if fault["type"] == "unexpected_keyword_argument":
            hint = meant(argument, names) or ";"
            said = f"{subject} has no parameter {shown(argument)}{hint} it takes: {signature_of(target)}"
            unknown.append((argument, said))
        elif fault["type"].startswith("missing") and len(fault["loc"]) == 1:
            missing.append(argument)
        else:
            below = fault["loc"][1:-1] if fault["type"].startswith("missing") else fault["loc"][1:]
            path, hint = _inside(argument, hint_at(target, argument), below)
            got = f"{subject}: {_named(path)} = {shown(fault['input'])}"
            wrong[path] = f"{got} is not allowed: {allowed(fault, hint)}"
    if missing:
        needs = f"{subject} needs {', '.join(map(repr, missing))}; it takes: {signature_of(target)}"
        unknown = unknown or [(missing[0], needs)]  # what is missing may only be mistyped
    told = [(str(path[0]), said) for path, said in wrong.items() if not _is_told_below(path, wrong)]
    faults = [*unknown, *told]
    refused = ConfigError(few([said for _, said in faults]))
    refused.faults = tuple(((argument,), said) for argument, said in faults)
    return refused


def allowed(fault: ErrorDetails, hint: Any) -> str:
    """What may be written instead of what was got.

    Args:
        fault: what pydantic has found.
        hint: the type that was asked for; None if it is not known.
    """
    words = in_words(hint) if fault["type"] in _PYDANTICS else ""
    own = fault.get("ctx", {}).get("error") or fault["msg"].replace("Input should be", "it must be")
    return f"write {_corrected(fault['input'], hint, words)}" if words else str(own)


def hint_at(target: Callable[..., Any], name: str) -> Any:
    """The type of an argument; None if it is not known."""
    try:
        return get_type_hints(target, include_extras=True).get(name)
    except Exception:  # names for type checkers alone, or an object that is called
        return None


def _inside(argument: str, hint: Any, below: Sequence[int | str]) -> tuple[tuple[int | str, ...], Any]:
    """The place in an argument where pydantic has found a fault, and the type there."""
    path: list[int | str] = [argument]
    holder, chosen = None, False
    for part in below:
        if part == KEY:
            path[-1], hint = KEY, part_of(holder, KEY)
            continue
        held = part_of(hint, part)
        names_a_type = isinstance(part, str) and (held is None or (is_choice(hint) and not chosen))
        if not names_a_type:
            path.append(part)
            holder, hint = hint, held
        chosen = names_a_type
    return tuple(path), hint


def _named(path: Sequence[int | str]) -> str:
    *above, last = map(str, path)
    return f"a key of {'.'.join(above)}" if last == KEY else ".".join([*above, last])


def _corrected(got: object, hint: Any, words: str) -> str:
    """The words, and what to do about what is nearly right."""
    is_object = any(hasattr(one, "role") for one in (hint, *get_args(hint)))
    if inspect.isclass(got) or (is_object and isinstance(got, str) and got.isidentifier()):
        return f"{words}; make one: {getattr(got, '__name__', got)}(…)"
    if inspect.isroutine(got):
        return f"{words}; write a class, with @frozen above it, not a function"
    number = words.removesuffix(OR_SCHEDULE)
    schedule = words[len(number) :]
    whole = _whole(got) if "a whole number" in number else None
    if whole is not None and _is_taken(whole, hint):
        return f"{number}: {whole if isinstance(got, float) else f'int({shown(got)})'}{schedule}"
    quoted = isinstance(got, str) and "number" in number and _is_number(got)
    return f"{number}{', without quotes' if quoted else with_point(got, hint)}{schedule}"


def with_point(got: object, hint: Any) -> str:
    """What to do about a number that has a comma where its point should be; of all else ""."""
    number = got.replace(",", ".") if isinstance(got, str) and "," in got else ""
    return f", with a point: {number}" if _is_number(number) and _is_taken(float(number), hint) else ""


def _whole(got: object) -> int | None:
    """The whole number that it equals, if it is of another type."""
    if isinstance(got, bool):
        return None
    if isinstance(got, float):
        return int(got) if got.is_integer() and abs(got) <= _LARGEST_EXACT else None
    try:
        return operator.index(got)  # type: ignore[arg-type]  # what has none raises
    except Exception:  # a tensor of many numbers raises its own
        return None


def _is_taken(value: float, hint: Any) -> bool:
    """Whether the type allows it."""
    try:
        TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(value, strict=True)
    except Exception:  # a plug-in's own checks may raise anything
        return False
    return True


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _is_told_below(path: tuple[int | str, ...], wrong: Iterable[tuple[int | str, ...]]) -> bool:
    """Whether the fault is one of a part of what stands there."""
    return any(len(other) > len(path) and other[: len(path)] == path for other in wrong)


def refuse_bools(subject: str, target: Callable[..., Any], values: Mapping[str, object]) -> None:
    """Refuse True and False where some numbers are allowed: they equal 1 and 0, so pydantic takes them.

    Raises: ConfigError.
    """
    hints = get_type_hints(target) if any(isinstance(value, bool) for value in values.values()) else {}
    for name, value in values.items():
        hint = hints.get(name)
        if not isinstance(value, bool) or get_origin(hint) is not Literal:
            continue
        if not any(one is value for one in get_args(hint)):
            raise ConfigError(f"{subject}: {name} = {value} is not allowed: write {in_words(hint)}")
