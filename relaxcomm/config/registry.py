"""Names to primitives and algorithms: the bundled ones and third parties' are found the same way."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TypeGuard

from pydantic import ConfigDict, ValidationError, validate_call

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config.discovery import ALGORITHMS, PRIMITIVES, complain, discover, is_primitive, points_in
from relaxcomm.errors import ConfigError, PluginError, RelaxcommError, worded
from relaxcomm.fields.frozen import Declared
from relaxcomm.fields.validation import closest, describe, refuse_bools, shown, signature_of

_included: list[EntryPoint] = []  # of packages that are not installed


@dataclass(frozen=True)
class Entry:
    """An algorithm that was found by its entry point.

    Args:
        name: what users type.
        build: called with the user's parameters, returns an Algorithm.
        origin: the distribution that provides it.
    """

    name: str
    build: Callable[..., Algorithm]
    origin: str

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return (inspect.getdoc(self.build) or "").partition("\n")[0]

    @property
    def parameters(self) -> str:
        """The parameters with their defaults."""
        return signature_of(self.build)

    def __call__(self, **parameters: object) -> Algorithm:
        """Build the algorithm.

        Raises: ConfigError for an unknown, missing or wrong parameter; PluginError if it cannot be built.
        """
        try:
            refuse_bools(f"algorithm {self.name}", self.build, parameters)
            checked = validate_call(config=ConfigDict(strict=True, arbitrary_types_allowed=True))(self.build)
            built = checked(**parameters)
        except ValidationError as error:
            raise ConfigError(describe(error, f"algorithm {self.name}", self.build)) from None
        except RelaxcommError:
            raise
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"algorithm {self.name} ({self.origin}) cannot be built: {worded(error)}"
            ) from error
        if not isinstance(built, Algorithm):
            raise PluginError(
                f"algorithm {self.name} ({self.origin}) returned {shown(built)}, not an Algorithm"
            )
        return built


@functools.cache
def algorithms() -> Mapping[str, Entry]:
    """Every discovered algorithm by name; one that cannot be loaded is warned about and left out."""
    found: dict[str, Entry] = {}
    for one in discover(ALGORITHMS, _included):
        if _has_signature(one.target):
            found[one.name] = Entry(one.name, one.target, one.origin)
        else:
            complain(one.name, one.origin, f"{shown(one.target)} is not a function that returns an Algorithm")
    return found


def _has_signature(target: object) -> TypeGuard[Callable[..., Algorithm]]:
    try:
        return callable(target) and inspect.signature(target) is not None
    except (TypeError, ValueError):  # of some that are built in
        return False


@functools.cache
def primitives() -> Mapping[str, Mapping[str, type[Declared]]]:
    """Every discovered primitive by role and name."""
    found: dict[str, dict[str, type[Declared]]] = {}
    for one in discover(PRIMITIVES, _included):
        if is_primitive(one.target):
            found.setdefault(one.target.role, {})[one.name] = one.target
        else:
            complain(one.name, one.origin, f"{shown(one.target)} is not a complete primitive or topology")
    return found


def algorithm(name: str) -> Entry:
    """The algorithm `name`.

    Raises: ConfigError with the closest match for an unknown name.
    """
    if name not in algorithms():
        raise ConfigError(f"unknown algorithm {shown(name)}{closest(name, algorithms())}")
    return algorithms()[name]


def primitive(role: str, name: str) -> type[Declared]:
    """The primitive `name` for a role such as "trigger".

    Raises: ConfigError with the closest match for an unknown name, or the role that it has.
    """
    known = primitives()
    if name in known.get(role, {}):
        return known[role][name]
    elsewhere = [other for other, names in known.items() if name in names]
    if elsewhere:
        raise ConfigError(f"{name!r} is a {elsewhere[0]}, not a {role}{closest(name, known.get(role, {}))}")
    raise ConfigError(f"unknown {role} {shown(name)}{closest(name, known.get(role, {}))}")


def include(path: Path) -> list[EntryPoint]:
    """Make known what a package's folder, or a file of Python, declares, without installing it.

    Args:
        path: a folder with a pyproject.toml, or a file with primitives and functions that return an
            `Algorithm`.

    Returns: the entry points that it has, or would have.
    """
    points = points_in(path)
    _included.extend(points)
    algorithms.cache_clear()
    primitives.cache_clear()
    return points
