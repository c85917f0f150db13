"""What may be written for an argument, in words, from its type."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator

_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    dict: "a mapping",
    Mapping: "a mapping",
}
_ROLES = {
    "outer": "an outer optimizer",
    "schedule": "a schedule of it: {piecewise: {values: […], steps: […]}}",
}
_LISTS = (tuple, list, Sequence)
_NO_BOUNDS = ("strict", "func", "json_schema_input_type")  # of pydantic's annotations


class _Unknown(Exception):
    """A type, or a bound, that has no words here."""


def in_words(hint: Any) -> str:
    """What a type and its bounds allow; "" for what there are no words for. None is left out.

    Args:
        hint: the type.

    Example:
        >>> from typing import Literal
        >>> from relaxcomm.plugin import Bits, Density
        >>> in_words(Bits), in_words(Literal["any", "all"] | None), in_words(list[str])
        ('a whole number, 1 to 8', "'any' or 'all'", 'a list, each item text')
        >>> in_words(Density)
        'a number above 0, and 1 at most, or a schedule of it: {piecewise: {values: […], steps: […]}}'
    """
    try:
        return _words(hint)
    except _Unknown:
        return ""


def part_of(hint: Any) -> Any:
    """The type of what a list or mapping of this type holds; None if it is neither.

    Example:
        >>> part_of(int | tuple[str, ...])
        <class 'str'>
    """
    hint, _ = _bare(hint)
    if _is_union(hint):
        return next((part for one in get_args(hint) if (part := part_of(one)) is not None), None)
    inner = [one for one in get_args(hint) if one is not Ellipsis]
    is_plain = get_origin(hint) in (*_LISTS, *_WORDS) and inner
    return inner[-1] if is_plain else None


def _words(hint: Any) -> str:
    hint, bounds = _bare(hint)
    if _is_union(hint):
        return ", or ".join(dict.fromkeys(_words(one) for one in get_args(hint) if one is not NoneType))
    if get_origin(hint) is Literal:
        *first, last = map(repr, get_args(hint))
        return f"{', '.join(first)} or {last}" if first else last
    if get_origin(hint) in _LISTS:
        return _list(get_origin(hint), get_args(hint), bounds)
    if hint in (int, float):
        return _number(hint, bounds)
    if bounds:
        raise _Unknown
    kind = get_origin(hint) or hint
    if kind in _WORDS:
        return _WORDS[kind]
    if not inspect.isclass(kind) or kind is Any:
        raise _Unknown
    role = getattr(kind, "role", kind.__name__)  # of what is found by its name, see frozen.Declared
    return _ROLES.get(role, f"{'an' if role[0] in 'aeiouAEIOU' else 'a'} {role}")


def _bare(hint: Any) -> tuple[Any, dict[str, Any]]:
    """A type without what is annotated, and the bounds among that."""
    bounds: dict[str, Any] = {}
    while get_origin(hint) is Annotated:
        hint, *notes = get_args(hint)
        for note in notes:
            written = note.json_schema_input_type if isinstance(note, BeforeValidator) else Any
            if get_origin(written) is not None:
                return _bare(written)
            for one in getattr(note, "metadata", (note,)):
                bounds |= _bounds(one)
    return hint, bounds


def _bounds(note: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(note):
        stated = {field.name: getattr(note, field.name) for field in dataclasses.fields(note)}
    else:
        stated = getattr(note, "__dict__", {})
    return {key: value for key, value in stated.items() if key not in _NO_BOUNDS}


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)


def _number(kind: type, bounds: Mapping[str, Any]) -> str:
    left = dict(bounds)
    is_finite = not left.pop("allow_inf_nan", True) and not {"le", "lt"} & left.keys()
    noun = "a finite number" if is_finite else _WORDS[kind]
    if kind is int:  # 8 at most, rather than below 9
        for above, low, one in (("gt", "ge", 1), ("lt", "le", -1)):
            if above in left:
                left[low] = math.floor(left.pop(above)) + one
    ends = {key: f"{left.pop(key):,}" for key in ("ge", "gt", "le", "lt") if key in left}
    if left:
        raise _Unknown
    if ends.keys() == {"ge", "le"}:
        return f"{noun}, {ends['ge']} to {ends['le']}"
    low = f" above {ends['gt']}" if "gt" in ends else f", {ends['ge']} or more" if "ge" in ends else ""
    high = f"{ends['le']} at most" if "le" in ends else f"below {ends['lt']}" if "lt" in ends else ""
    return noun + low + (", and " if low and high else ", " if high else "") + high


def _list(kind: type, held: tuple[Any, ...], bounds: Mapping[str, Any]) -> str:
    if bounds.keys() - {"min_length"}:
        raise _Unknown
    fewest, in_python = bounds.get("min_length", 0), " (in Python a tuple)" if kind is tuple else ""
    if kind is tuple and Ellipsis not in held:
        return f"a list of {len(held)}{in_python}: {', then '.join(map(_words, held))}"
    of = f" of {fewest} or more" if fewest else ""
    return f"a list{of}{in_python}, each item {_words(held[0])}"
