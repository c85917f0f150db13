"""Where the keys of a configuration come from, and what is said of those that are wrong."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeGuard, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config.extent import check_extent, parts_of
from relaxcomm.config.origin import Origin
from relaxcomm.config.yaml_text import parse_with_lines
from relaxcomm.errors import ConfigError, RelaxcommError
from relaxcomm.fields.frozen import Section
from relaxcomm.fields.validation import allowed, closest, few, hint_at, meant, shown
from relaxcomm.system.files import read_at_most

_LONGEST_BYTES = 524_288
_EXAMPLES = {
    "algorithm": "bsp",
    "task": "{digits: {epochs: 5}}",
    "data": "{batch_size: 64}",
    "data.injection": "{alpha: 0.5, beta: 0.5}",
    "checkpoint": "{path: checkpoints, every_steps: 1000}",
    "drift_guard": "{every_steps: 100}",
    "membership": "{elastic: true}",
    "metrics": "{port: 9400}",
    "phases": "[{after_steps: 1000, algorithm: local_sgd}]",
}
"""Examples of the keys that hold keys, or must be there."""


def read(source: object) -> tuple[dict[str, Any], Origin]:
    """A configuration's keys, unchecked, and what errors call the place where they stand.

    Raises: ConfigError where there is none.
    """
    if isinstance(source, Algorithm):
        return {"algorithm": source}, Origin("configuration")
    if isinstance(source, Mapping):
        check_extent(source, parts_of)
        return _with_text_keys(source), Origin("configuration")
    if not isinstance(source, str | PathLike):
        raise ConfigError(
            "a configuration is a path, a mapping such as {'algorithm': 'bsp'}, or an Algorithm such as "
            f"Algorithm((rule,), name='mine'); got {shown(source)}"
        )
    path = Path(source)
    data = read_at_most(path, _LONGEST_BYTES, "the configuration")
    try:
        with Origin(str(path)).told():
            values, lines = parse_with_lines(data.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8: {error.reason} at byte {error.start}; save it as UTF-8"
        ) from None
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path}: a configuration is a mapping such as 'algorithm: bsp', got "
            f"{'nothing' if values is None else shown(values)}"
        )
    return values, Origin(str(path), lines)


def _with_text_keys(values: Mapping[Any, Any]) -> dict[str, Any]:
    for key in values:
        if not isinstance(key, str):
            raise ConfigError(f"configuration: a key is text, such as 'algorithm', got {shown(key)}")
    return dict(values)


def put(values: dict[str, Any], key: str, value: object) -> None:
    """Set a dotted key, in which numbers are places in lists.

    An algorithm or task that is a bare name becomes a mapping to hold a parameter.

    Raises: ConfigError for a place that is not there.
    """
    *path, last = key.split(".")
    holder: Any = values
    for part in path:
        place = _place(holder, part, key)
        inner = holder[place] if isinstance(holder, list) else holder.get(place)
        if part == "algorithm" and isinstance(inner, str):
            inner = {"name": inner}
        if part == "task" and isinstance(inner, str):
            inner = {inner: {}}
        if not isinstance(inner, Mapping | list | None):
            raise ConfigError(f"{shown(key)}: {shown(part)} is {shown(inner)} and holds no keys")
        holder[place] = list(inner) if isinstance(inner, list) else dict(inner or {})
        holder = holder[place]
    holder[_place(holder, last, key)] = value


def _place(holder: Any, part: str, key: str) -> Any:
    """The key of a mapping, or the place in a list."""
    is_list = isinstance(holder, list)
    places = [str(place) for place in range(len(holder))] if is_list else []
    if part in places:
        return places.index(part)
    if is_list or (part.isdecimal() and part not in holder):
        held = f" of {len(holder)}; they are counted from 0" if is_list else ": there is none"
        raise ConfigError(f"{shown(key)}: {shown(part)} is no place in a list{held}")
    return part


def explain(
    error: ValidationError, origin: Origin, config: type[Section], parameters: Container[str]
) -> RelaxcommError:
    """What is wrong with each key: what was got, what is allowed.

    Args:
        error: what was found.
        origin: the place where the keys stand.
        config: what they should fit.
        parameters: of the algorithm, which do not stand beside it.
    """
    unknown, missing, lines = [], [], []
    listed: set[type[Section]] = set()  # whose keys are told already
    kind: type[RelaxcommError] = ConfigError
    for fault in error.errors():
        place, at = ".".join(map(str, fault["loc"])), origin.at(fault["loc"])
        cause = fault.get("ctx", {}).get("error")
        if isinstance(cause, RelaxcommError):
            kind = type(cause)
            for key, said in cause.faults or (((), str(cause)),):
                named = f"{place}: " if "." in place and place not in said else ""
                lines.append(f"{origin.at((*fault['loc'], *cause.key, *key))}: {named}{said}")
        elif fault["type"] == "extra_forbidden":
            section, last = _section(config, fault["loc"]), str(fault["loc"][-1])
            where = _home(place, config, parameters)
            if not where:
                where = (meant if section in listed else closest)(last, section.model_fields)
                listed.add(section)
            unknown.append(f"{at}: unknown key {shown(place)}{where}")
        elif fault["type"] == "missing":
            missing.append(f"{at}: {place} is missing; write it, such as {_example(str(fault['loc'][0]))}")
        else:
            got = f"{at}: {place}: {shown(fault['input'])} is not allowed"
            lines.append(f"{got}{_allowed(fault, _section(config, fault['loc']))}")
    return kind(few([*(unknown or missing), *lines]))  # what is missing may only be mistyped


def _home(key: str, config: type[Section], parameters: Container[str]) -> str:
    """Where a key goes that was written at the top, if that is known."""
    if key in parameters:
        return "; parameters of an algorithm go into it: algorithm: {name: local_sgd, steps: 8}"
    sections = {name: _section_in(field.annotation) for name, field in config.model_fields.items()}
    homes = [name for name, section in sections.items() if section and key in section.model_fields]
    homes += ["task"] * (key == "epochs")
    told = ", or ".join(f"{home}, such as {_example(home)}" for home in homes)
    return f"; it goes into {told}" if told else ""


def _example(place: str) -> str:
    return f"{place.rpartition('.')[2]}: {_EXAMPLES[place]}"


def _allowed(fault: ErrorDetails, section: type[Section]) -> str:
    """What may stand there: an example where keys are missing altogether."""
    place = ".".join(part for part in fault["loc"] if isinstance(part, str))
    if fault["type"] in ("model_type", "tuple_type", "dataclass_exact_type") and place in _EXAMPLES:
        return f"; write its keys, such as {_example(place)}"
    return f": {allowed(fault, hint_at(section, str(fault['loc'][-1])))}"


def _section(section: type[Section], place: Sequence[int | str]) -> type[Section]:
    """The section, in one, that holds a key."""
    for part in place[:-1]:
        if isinstance(part, str):  # numbers are places in a list
            section = _section_in(section.model_fields[part].annotation) or section
    return section


def _section_in(hint: Any) -> type[Section] | None:
    """The section that a type holds."""
    return next((one for one in (hint, *get_args(hint)) if _is_section(one)), None)


def _is_section(value: object) -> TypeGuard[type[Section]]:
    return isinstance(value, type) and issubclass(value, Section)
