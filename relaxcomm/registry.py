"""Names to primitives and algorithms: the bundled ones and third parties' are found the same way."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import tomllib
import typing
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, ValidationError, validate_call

from relaxcomm import deprecation
from relaxcomm.algorithm import Algorithm
from relaxcomm.errors import ConfigError, PluginError
from relaxcomm.frozen import Declared
from relaxcomm.protocol import RELAXCOMM_PROTOCOL
from relaxcomm.validation import closest, describe, signature_of

ALGORITHMS = "relaxcomm.algorithms"
PRIMITIVES = "relaxcomm.primitives"
_VERSION = "RELAXCOMM_PROTOCOL"
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
        """First line of the docstring, and whether it is to go."""
        first = (inspect.getdoc(self.build) or "").partition("\n")[0]
        gone = deprecation.notice(self.build)
        return f"{first} ({gone})" if gone else first

    @property
    def parameters(self) -> str:
        """The parameters with their defaults."""
        return signature_of(self.build)

    def __call__(self, **parameters: object) -> Algorithm:
        """Build the algorithm.

        Raises: ConfigError for an unknown, missing or wrong parameter.
        """
        deprecation.warn_of(self.build)
        parameters = deprecation.update(self.build, parameters)
        checked = validate_call(config=ConfigDict(strict=True, arbitrary_types_allowed=True))(self.build)
        try:
            built = checked(**parameters)
        except ValidationError as error:
            raise ConfigError(describe(error, f"algorithm {self.name}", self.build)) from None
        if not isinstance(built, Algorithm):
            raise PluginError(f"algorithm {self.name} ({self.origin}) returned {built!r}, not an Algorithm")
        return built


@functools.cache
def algorithms() -> Mapping[str, Entry]:
    """Every discovered algorithm by name; one that cannot be loaded is warned about and left out."""
    found: dict[str, Entry] = {}
    for point, loaded in _load(ALGORITHMS):
        if callable(loaded):
            found[point.name] = Entry(point.name, loaded, _origin(point))
        else:
            _complain(point, f"{loaded!r} is not a function that returns an Algorithm")
    return found


@functools.cache
def primitives() -> Mapping[str, Mapping[str, type[Declared]]]:
    """Every discovered primitive by role and name."""
    found: dict[str, dict[str, type[Declared]]] = {}
    for point, loaded in _load(PRIMITIVES):
        if inspect.isclass(loaded) and issubclass(loaded, Declared) and not inspect.isabstract(loaded):
            found.setdefault(loaded.role, {})[point.name] = loaded
        else:
            _complain(
                point,
                f"{loaded!r} is not a complete primitive or topology",
            )
    return found


def algorithm(name: str) -> Entry:
    """The algorithm `name`.

    Raises: ConfigError with the closest match for an unknown name.
    """
    if name not in algorithms():
        raise ConfigError(f"unknown algorithm {name!r}{closest(name, algorithms())}")
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
    raise ConfigError(f"unknown {role} {name!r}{closest(name, known.get(role, {}))}")


def _load(group: str) -> list[tuple[EntryPoint, Any]]:
    loaded: dict[str, tuple[EntryPoint, Any]] = {}
    own = [point for point in _included if point.group == group]
    for point in sorted([*entry_points(group=group), *own], key=lambda point: (point.name, point.value)):
        if point.name in loaded:
            if point.value != loaded[point.name][0].value:
                _complain(point, f"the name is already taken by {loaded[point.name][0].value}")
            continue
        try:
            loaded[point.name] = (point, load(point))
        except PluginError as error:
            _complain(point, str(error))
        except Exception as error:  # a broken plug-in must not take the others down
            _complain(point, f"{type(error).__name__}: {error}")
    return list(loaded.values())


def load(point: EntryPoint) -> Any:
    """What an entry point names.

    Raises: PluginError if its package was not written for this version of the plug-in protocol; and
        whatever importing it raises.
    """
    found = point.load()
    package = point.value.partition(":")[0].partition(".")[0]
    declared = getattr(sys.modules[package], _VERSION, None)
    if declared is None:
        raise PluginError(
            f"{package} does not say for which plug-in protocol it was written; add {_VERSION} = "
            f"{RELAXCOMM_PROTOCOL} to its top-level module"
        )
    if declared != RELAXCOMM_PROTOCOL:
        newer = "relaxcomm" if declared > RELAXCOMM_PROTOCOL else package
        raise PluginError(
            f"{package} was written for plug-in protocol {declared}, and this relaxcomm has "
            f"{RELAXCOMM_PROTOCOL}; install a newer {newer}"
        )
    return found


def include(path: Path) -> list[EntryPoint]:
    """Make known what a package's folder, or a file of Python, declares, without installing it.

    Args:
        path: a folder with a pyproject.toml, or a file with primitives and functions that return an
            `Algorithm`.

    Returns: the entry points that it has, or would have.
    """
    points = _declared(path) if path.is_dir() else _defined(path)
    _included.extend(points)
    algorithms.cache_clear()
    primitives.cache_clear()
    return points


def _declared(folder: Path) -> list[EntryPoint]:
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{folder} is not a package's folder: pyproject.toml: {error}") from None
    source = folder / "src" if (folder / "src").is_dir() else folder
    sys.path.insert(0, str(source.resolve()))
    groups = project.get("entry-points", {})
    return [
        EntryPoint(name, value, group)
        for group in (ALGORITHMS, PRIMITIVES)
        for name, value in groups.get(group, {}).items()
    ]


def _defined(file: Path) -> list[EntryPoint]:
    sys.path.insert(0, str(file.resolve().parent))
    module = importlib.import_module(file.stem)
    found = []
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) != module.__name__ or name.startswith("_"):
            continue
        if inspect.isclass(value) and issubclass(value, Declared) and not inspect.isabstract(value):
            found.append(EntryPoint(name, f"{file.stem}:{name}", PRIMITIVES))
        elif inspect.isfunction(value) and typing.get_type_hints(value).get("return") is Algorithm:
            found.append(EntryPoint(name, f"{file.stem}:{name}", ALGORITHMS))
    return found


def _complain(point: EntryPoint, reason: str) -> None:
    warnings.warn(f"plug-in {point.name!r} of {_origin(point)} is left out: {reason}", stacklevel=3)


def _origin(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value
