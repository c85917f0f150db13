"""Where the keys of a configuration come from, and what is said of those that are wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeGuard, get_args

import yaml
from pydantic import ValidationError

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config.yaml_text import parse_yaml
from relaxcomm.errors import ConfigError, RelaxcommError
from relaxcomm.fields.frozen import Section
from relaxcomm.fields.validation import closest


def read(source: object) -> tuple[dict[str, Any], str]:
    """A configuration's keys, unchecked, and what errors call the place where they stand.

    Raises: ConfigError where there is none.
    """
    if isinstance(source, Algorithm):
        return {"algorithm": source}, "configuration"
    if isinstance(source, Mapping):
        return {str(key): value for key, value in source.items()}, "configuration"
    if not isinstance(source, str | PathLike):
        raise ConfigError(f"a configuration is a path, a mapping or an Algorithm, got {source!r}")
    path = Path(source)
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a configuration is a mapping such as 'algorithm: bsp', got {values!r}")
    return {str(key): value for key, value in values.items()}, str(path)


def put(values: dict[str, Any], key: str, value: object) -> None:
    """Set a dotted key; an algorithm or task that is a bare name becomes a mapping to hold a parameter."""
    *path, last = key.split(".")
    place = values
    for part in path:
        inner = place.get(part)
        if part == "algorithm" and isinstance(inner, str):
            inner = {"name": inner}
        if part == "task" and isinstance(inner, str):
            inner = {inner: {}}
        if inner is not None and not isinstance(inner, Mapping):
            raise ConfigError(f"{key}: {part} is {inner!r} and holds no keys")
        place[part] = dict(inner or {})
        place = place[part]
    place[last] = value


def explain(error: ValidationError, origin: str, config: type[Section]) -> RelaxcommError:
    """What is wrong with each key: what was got, what is allowed."""
    lines = []
    for fault in error.errors():
        place = ".".join(str(part) for part in fault["loc"])
        cause = fault.get("ctx", {}).get("error")
        if isinstance(cause, RelaxcommError):
            return type(cause)(f"{origin}: {cause}")
        if fault["type"] == "extra_forbidden":
            keys = _section(config, fault["loc"]).model_fields
            lines.append(f"{origin}: unknown key {place!r}{closest(str(fault['loc'][-1]), keys)}")
        else:
            lines.append(f"{origin}: {place}: {fault['input']!r} is not allowed: {fault['msg']}")
    return ConfigError("\n".join(lines))


def _section(section: type[Section], place: Sequence[int | str]) -> type[Section]:
    """The section, in one, that holds a key."""
    for part in place[:-1]:
        if isinstance(part, str):  # numbers are places in a list
            annotation = section.model_fields[part].annotation
            section = next(one for one in (annotation, *get_args(annotation)) if _is_section(one))
    return section


def _is_section(value: object) -> TypeGuard[type[Section]]:
    return isinstance(value, type) and issubclass(value, Section)
