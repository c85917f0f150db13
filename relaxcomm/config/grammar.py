"""The YAML grammar of primitives and algorithms: one form for all of them, see `parse_primitive`."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.composition.rule import Rule
from relaxcomm.config import registry
from relaxcomm.config.origin import Origin, below
from relaxcomm.errors import ConfigError, PluginError, RelaxcommError, worded
from relaxcomm.fields.frozen import Declared
from relaxcomm.fields.schedules import piecewise
from relaxcomm.fields.validation import closest, meant, shown

T = TypeVar("T")
_ROLES = ("trigger", "payload", "compressor", "exchange", "outer")
_RULE_KEYS = ("trigger", "payload", "compressor", "exchange", "delay", "outer", "select", "active")


def parse_algorithm(value: object) -> Algorithm:
    """An algorithm from YAML: a name, `{name: …, parameter: …}`, or `{rules: [ … ], controllers: [ … ]}`.

    Raises: ConfigError or CompositionError.

    Example:
        >>> parse_algorithm({"name": "local_sgd", "steps": 8}).name
        'local_sgd'
    """
    if isinstance(value, Algorithm):
        return value
    if isinstance(value, str):
        return registry.algorithm(value)()
    if isinstance(value, Mapping) and "rules" in value:
        return _parse_rules(value)
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        entry = registry.algorithm(value["name"])
        return entry(**arguments_of(entry.build, {k: item for k, item in value.items() if k != "name"}))
    raise ConfigError(
        f"algorithm: {shown(value)} is not allowed; write a name, {{name: local_sgd, steps: 8}}, or "
        "{rules: [{payload: gradients, exchange: all_reduce}]}"
    )


def parameters_of(value: object) -> frozenset[str]:
    """The names of what a named algorithm takes, in any of its forms; of others none.

    Example:
        >>> sorted(parameters_of("slowmo"))
        ['lr', 'moments', 'momentum', 'steps']
    """
    name = value.get("name") if isinstance(value, Mapping) else value
    entry = registry.algorithms().get(name) if isinstance(name, str) else None
    return frozenset() if entry is None else frozenset(inspect.signature(entry.build).parameters)


def check_no_algorithm(values: Mapping[str, Any], origin: Origin) -> None:
    """Refuse keys that are an algorithm's, where those of a configuration are expected.

    Raises: ConfigError.
    """
    meant: Mapping[str, Any] = values if values.keys() & {"name", "rules"} else {}
    if len(values) == 1:
        ((name, parameters),) = values.items()
        if name in registry.algorithms():
            meant = {"name": name, **(parameters if isinstance(parameters, Mapping) else {})}
    if meant:
        raise ConfigError(
            f"{origin}: {shown(values)} is an algorithm, which is one of a configuration's keys; write "
            f"{shown({'algorithm': meant})}"
        )


def parse_primitive(role: str, value: object) -> Declared:
    """A primitive from YAML.

    Its name if it takes no arguments, a one-key mapping to its arguments otherwise; one that wraps
    another takes that one, or a list of them, as the value, or its arguments in the long form.

    Raises: ConfigError.

    Example:
        >>> parse_primitive("trigger", {"every": {"steps": 16}})
        every(steps=16)
    """
    if isinstance(value, Declared) and value.role == role:
        return value
    if isinstance(value, str):
        return _made(registry.primitive(role, value), {})
    if isinstance(value, Mapping) and len(value) == 1:
        name, arguments = next(iter(value.items()))
        with below(str(name)):
            cls = registry.primitive(role, str(name))
            return _made(cls, _arguments(cls, arguments))
    raise ConfigError(
        f"{role}: {shown(value)} is not allowed; write a name, or one name with its arguments: "
        "{name: {…}}"
    )


def _made(cls: type[Declared], arguments: Mapping[str, Any]) -> Declared:
    try:
        return cls(**arguments)
    except RelaxcommError:
        raise
    except Exception as error:
        name = f"{cls.role} {cls.__name__} ({cls.__module__})"
        raise PluginError(f"{name} cannot be made: {worded(error)}") from error


def arguments_of(target: Callable[..., object], values: Mapping[Any, Any]) -> dict[str, Any]:
    """Arguments of a primitive's class or an algorithm's function from what YAML has for them.

    Raises: ConfigError.

    Example:
        >>> from relaxcomm.primitives import error_feedback
        >>> arguments_of(error_feedback, {"compressor": {"top_k": {"density": 0.01}}})
        {'compressor': top_k(density=0.01)}
    """
    hints = typing.get_type_hints(inspect.unwrap(target))
    wrapped, arguments = _wrapped(hints), {}
    for key, item in values.items():
        name = str(key)
        with below(name):
            arguments[name] = _parse_field(wrapped.get(name), item, hints.get(name))
    return arguments


def _parse_rules(value: Mapping[Any, Any]) -> Algorithm:
    """The algorithm of a mapping that holds rules."""
    unknown = set(value) - {"rules", "name", "controllers"}
    if unknown:
        raise ConfigError(
            f"algorithm: {shown(sorted(map(str, unknown)))} beside 'rules' is not allowed; 'name' and "
            "'controllers' are"
        )
    for key in ("rules", "controllers"):
        if not isinstance(value.get(key, []), list):
            raise ConfigError(f"algorithm: {key} must be a list, got {shown(value[key])}")
    more: dict[str, Any] = {"name": value["name"]} if "name" in value else {}
    if "controllers" in value:
        with below("controllers"):
            more["controllers"] = _each(partial(parse_primitive, "controller"), value["controllers"])
    with below("rules"):
        rules = _each(_parse_rule, value["rules"])
    return Algorithm(rules, **more)


def _each(parse: Callable[[object], T], values: Sequence[object]) -> tuple[T, ...]:
    """What a list holds."""
    found = []
    for place, value in enumerate(values):
        with below(place):
            found.append(parse(value))
    return tuple(found)


def _parse_rule(value: object) -> Rule:
    """One of its rules."""
    if isinstance(value, Rule):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"a rule is a mapping such as {{payload: gradients, exchange: all_reduce}}, got {shown(value)}"
        )
    arguments: dict[str, Any] = {}
    for key, item in value.items():
        if key not in _RULE_KEYS:
            with below(str(key)):
                raise ConfigError(f"unknown key {shown(key)} in a rule{closest(str(key), _RULE_KEYS)}")
        value = tuple(item) if isinstance(item, list) else item
        with below(key):
            arguments[key] = parse_primitive(key, item) if key in _ROLES else value
    return Rule(**arguments)


def _arguments(cls: type[Declared], value: object) -> dict[str, Any]:
    """What a primitive is made with: a mapping of its arguments, or what it wraps alone."""
    hints = typing.get_type_hints(cls)
    wrapped = _wrapped(hints)
    if wrapped:
        name, role = next(iter(wrapped.items()))
        if not isinstance(value, Mapping) or _is_primitive(role, value, _field_names(cls)):
            return {name: _parse_field(role, value, hints[name])}
    if not isinstance(value, Mapping):
        names = _field_names(cls)
        form = f"{names[0]}: {shown(value)}" if len(names) == 1 else ", ".join(f"{one}: …" for one in names)
        by_name = f"write its arguments by name: {{{cls.__name__}: {{{form}}}}}"
        to_do = by_name if names else "it takes no arguments, so write its name alone"
        raise ConfigError(f"{cls.__name__}: {shown(value)} is not allowed; {to_do}")
    return arguments_of(cls, value)


def _is_primitive(role: str, value: Mapping[Any, Any], parameters: Sequence[str]) -> bool:
    """Whether it is one, also of another role or misspelt, where parameters might stand as well."""
    name = str(next(iter(value), ""))
    if len(value) != 1 or name in parameters:
        return False
    registry.refuse_left_out(name)
    known = registry.primitives()
    if any(name in names for names in known.values()):
        return True
    near = meant(name, known.get(role, {}))
    return near != "" and near == meant(name, [*known.get(role, {}), *parameters])


def _parse_field(role: str | None, item: object, hint: Any) -> object:
    if role is None or not isinstance(item, str | Mapping | list | Declared):  # a number, or none
        return tuple(item) if isinstance(item, list) and not _takes_lists(hint) else item
    if role == piecewise.role and isinstance(item, str | list):  # no number, which its own error says
        return item
    parse = partial(parse_primitive, role)
    return _each(parse, item) if isinstance(item, list) else parse(item)


def _takes_lists(hint: Any) -> bool:
    return any(list in (one, typing.get_origin(one)) for one in (hint, *typing.get_args(hint)))


def _field_names(cls: type[Declared]) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]  # made by @frozen


def _wrapped(hints: Mapping[str, Any]) -> dict[str, str]:
    """Parameters of a primitive's class or an algorithm's function that hold primitives, with their role."""
    found = {}
    for name, hint in hints.items():
        for held in (hint, *typing.get_args(hint)):
            if inspect.isclass(held) and issubclass(held, Declared):
                found[name] = held.role
    return found
