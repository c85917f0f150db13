"""What may be written for an argument, in words, from its type."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping, Sequence
from enum import Enum
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
OR_SCHEDULE = f", or {_ROLES['schedule']}"
_LISTS = (tuple, list, Sequence)
_MAPPINGS = (dict, Mapping)
KEY = "[key]"  # which pydantic says where a key is wrong, and not its value
ONE_LINE = r"^[^\x00-\x1f\x7f]+$"
"""What text without control characters, such as line breaks, matches."""
_NO_LIMITS: Mapping[str, Any] = {}
_NO_BOUNDS = ("strict", "func", "json_schema_input_type")  # of pydantic's annotations


class _Unknown(Exception):
    """A type, or a bound, that has no words here."""


def in_words(hint: Any) -> str:
    """What a type and its bounds allow; "" for what there are no words for. None is named in a list alone.

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


def part_of(hint: Any, place: int | str = 0) -> Any:
    """The type of what a list or mapping of this type holds; None if it is neither.

    Args:
        hint: the type.
        place: in a list; the key, or `KEY` for the type of the keys themselves.

    Example:
        >>> part_of(int | tuple[str, ...]), part_of(tuple[int, str], 0), part_of(dict[str, float], "a")
        (<class 'str'>, <class 'int'>, <class 'float'>)
    """
    hint, _ = _bare(hint)
    if _is_union(hint):
        return next((part for one in get_args(hint) if (part := part_of(one, place)) is not None), None)
    kind, held = get_origin(hint), get_args(hint)
    if kind in _MAPPINGS and held:
        return held[place != KEY]
    if kind not in _LISTS or not held or isinstance(place, str):
        return None
    return held[0] if not _is_fixed(kind, held) else held[place] if place < len(held) else None


def is_choice(hint: Any) -> bool:
    """Whether a type allows several others, None apart, of which pydantic names the one that was tried."""
    hint, _ = _bare(hint)
    return _is_union(hint) and len(set(get_args(hint)) - {NoneType}) > 1


def _words(hint: Any, outer: Mapping[str, Any] = _NO_LIMITS) -> str:
    hint, own = _bare(hint)
    bounds = {**own, **outer}
    if _is_union(hint):
        return ", or ".join(
            dict.fromkeys(_words(one, bounds) for one in get_args(hint) if one is not NoneType)
        )
    if get_origin(hint) is Literal:
        return one_of([*map(repr, get_args(hint))])
    if get_origin(hint) in _LISTS:
        return _list(get_origin(hint), get_args(hint), bounds)
    if hint in (int, float):
        return _number(hint, bounds)
    if hint is str:
        return _text(bounds)
    if bounds:
        raise _Unknown
    kind, held = get_origin(hint) or hint, get_args(hint)
    if kind in _MAPPINGS and held:
        keys = "" if held[0] is str else f", each key {_words(held[0])}"
        return f"{_WORDS[kind]}{keys}, each value {_item(held[1])}"
    if kind in _WORDS:
        return _WORDS[kind]
    if not inspect.isclass(kind) or kind is Any:
        raise _Unknown
    if issubclass(kind, Enum):
        return one_of([f"{kind.__name__}.{name}" for name in kind.__members__])
    role = getattr(kind, "role", kind.__name__)  # of what is found by its name, see frozen.Declared
    return _ROLES.get(role) or with_article(role)


def with_article(noun: str) -> str:
    """A noun behind "a" or "an".

    Example:
        >>> with_article("exchange"), with_article("trigger")
        ('an exchange', 'a trigger')
    """
    return f"{'an' if noun[0] in 'aeiouAEIOU' else 'a'} {noun}"


def one_of(named: Sequence[str]) -> str:
    """Names as a choice in a sentence.

    Example:
        >>> one_of(["any", "all", "majority"]), one_of(["all"])
        ('any, all or majority', 'all')
    """
    *first, last = named
    return f"{', '.join(first)} or {last}" if first else last


def _item(hint: Any) -> str:
    """The same of what lies in a list or mapping, where None has to be named."""
    bare, _ = _bare(hint)
    return _words(hint) + (", or null (in Python None)" if NoneType in get_args(bare) else "")


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
    return {key: value for key, value in stated.items() if key not in _NO_BOUNDS and value is not None}


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


def _text(bounds: Mapping[str, Any]) -> str:
    pattern = bounds.get("pattern", ONE_LINE)
    if pattern != ONE_LINE or bounds.keys() - {"pattern", "min_length", "max_length"}:
        raise _Unknown
    on_one_line = ", without line breaks and other control characters" if "pattern" in bounds else ""
    fewest, most = bounds.get("min_length", 0), bounds.get("max_length")
    if most is None:
        return (f"text of {fewest} or more characters" if fewest else "text") + on_one_line
    return f"text of {fewest} to {most} characters{on_one_line}"


def _list(kind: type, held: tuple[Any, ...], bounds: Mapping[str, Any]) -> str:
    if bounds.keys() - {"min_length"}:
        raise _Unknown
    fewest, in_python = bounds.get("min_length", 0), " (in Python a tuple)" if kind is tuple else ""
    if _is_fixed(kind, held):
        return f"a list of {len(held)}{in_python}: {', then '.join(map(_item, held))}"
    of = f" of {fewest} or more" if fewest else ""
    return f"a list{of}{in_python}, each item {_item(held[0])}"


def _is_fixed(kind: type, held: tuple[Any, ...]) -> bool:
    return kind is tuple and Ellipsis not in held
