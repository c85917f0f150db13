"""Entry points of plug-ins: of what is installed, and of a folder or file that is not."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import tomllib
import typing
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeGuard

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.errors import ConfigError, PluginError, worded
from relaxcomm.fields.frozen import Declared
from relaxcomm.fields.validation import shown
from relaxcomm.roles import RELAXCOMM_PROTOCOL
from relaxcomm.system.files import read_at_most

ALGORITHMS = "relaxcomm.algorithms"
PRIMITIVES = "relaxcomm.primitives"
_VERSION = "RELAXCOMM_PROTOCOL"
_OWN_PACKAGES = ("relaxcomm", "relaxcomm_algorithms")
_LONGEST_BYTES = 1_048_576


@dataclass(frozen=True)
class Found:
    """What an entry point names.

    Args:
        name: what users type.
        target: what was loaded.
        place: module and name, as an entry point has them.
        origin: the distribution that provides it.
    """

    name: str
    target: Any
    place: str
    origin: str


def discover(group: str, included: Iterable[EntryPoint]) -> list[Found]:
    """What a group's entry points name; one that cannot be loaded is warned about and left out.

    Args:
        group: `ALGORITHMS` or `PRIMITIVES`.
        included: entry points of packages that are not installed.
    """
    found: dict[str, Found] = {}
    uninstalled = [point for point in included if point.group == group]
    for point in sorted([*entry_points(group=group), *uninstalled], key=_bundled_first):
        source = point.dist.name if point.dist is not None else point.value
        for one in each(point):
            if one.name in found:
                if one.value != found[one.name].place:
                    complain(one.name, source, f"the name is already taken by {found[one.name].place}")
                continue
            try:
                found[one.name] = Found(one.name, load(one), one.value, source)
            except PluginError as error:
                complain(one.name, source, str(error))
            except (Exception, SystemExit) as error:  # a broken plug-in must not take the others down
                complain(one.name, source, worded(error))
    return list(found.values())


def _bundled_first(point: EntryPoint) -> tuple[bool, str, str]:
    """Order in which names are given: nobody else gets those of what is bundled."""
    return _package(point) not in _OWN_PACKAGES, point.name, point.value


def _package(point: EntryPoint) -> str:
    return point.value.partition(":")[0].partition(".")[0]


def each(point: EntryPoint) -> list[EntryPoint]:
    """The entry points that it stands for: one that names a module, for every primitive in it.

    One that cannot be loaded, or whose module has none, stands for itself, so that loading it says why.
    """
    if ":" in point.value or point.group != PRIMITIVES:
        return [point]
    try:
        module = load(point)
    except (Exception, SystemExit):
        return [point]
    package = module.__name__.partition(".")[0]
    defined = [
        EntryPoint(name, f"{module.__name__}:{name}", PRIMITIVES)
        for name, value in vars(module).items()
        if not name.startswith("_") and is_primitive(value) and value.__module__.partition(".")[0] == package
    ]
    return defined or [point]


def is_primitive(value: object) -> TypeGuard[type[Declared]]:
    """Whether it is a class that can be named in YAML: one with a role, and nothing left abstract."""
    return (
        inspect.isclass(value)
        and issubclass(value, Declared)
        and not inspect.isabstract(value)
        and isinstance(getattr(value, "role", None), str)
    )


def load(point: EntryPoint) -> Any:
    """What an entry point names.

    Raises: PluginError for a name or a place that cannot be, or a package that was not written for this
        version of the plug-in protocol; and whatever importing it raises.
    """
    if not re.fullmatch(r"[\w.-]{1,100}", point.name):
        raise PluginError("a name has letters, digits, _, - and ., 100 at most")
    if not EntryPoint.pattern.match(point.value):
        raise PluginError(f"{shown(point.value)} is no place; write package.module:name")
    found, package = point.load(), _package(point)
    declared = getattr(sys.modules[package], _VERSION, None)
    if declared is None:
        raise PluginError(
            f"{package} does not say for which plug-in protocol it was written; add {_VERSION} = "
            f"{RELAXCOMM_PROTOCOL} to its top-level module"
        )
    if not isinstance(declared, int):
        raise PluginError(f"{_VERSION} of {package} is {shown(declared)}; it is a whole number")
    if declared != RELAXCOMM_PROTOCOL:
        newer = "relaxcomm" if declared > RELAXCOMM_PROTOCOL else package
        raise PluginError(
            f"{package} was written for plug-in protocol {declared}, and this relaxcomm has "
            f"{RELAXCOMM_PROTOCOL}; install a newer {newer}"
        )
    return found


def points_in(path: Path) -> list[EntryPoint]:
    """What a package's folder declares, or a file of Python would; its modules can be imported from then on.

    Args:
        path: a folder with a pyproject.toml, or a file with primitives and functions that return an
            `Algorithm`.
    """
    return _declared(path) if path.is_dir() else _defined(path)


def _declared(folder: Path) -> list[EntryPoint]:
    data = read_at_most(folder / "pyproject.toml", _LONGEST_BYTES, "the package's")
    try:
        groups = tomllib.loads(data.decode())["project"].get("entry-points", {})
        points = [
            EntryPoint(name, str(value), group)
            for group in (ALGORITHMS, PRIMITIVES)
            for name, value in groups.get(group, {}).items()
        ]
    except (KeyError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{folder} is not a package's folder: pyproject.toml: {worded(error)}") from None
    source = folder / "src" if (folder / "src").is_dir() else folder
    sys.path.insert(0, str(source.resolve()))
    return [one for point in points for one in each(point)]


def _defined(file: Path) -> list[EntryPoint]:
    sys.path.insert(0, str(file.resolve().parent))
    module = importlib.import_module(file.stem)
    found = []
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) != module.__name__ or name.startswith("_"):
            continue
        if is_primitive(value):
            found.append(EntryPoint(name, f"{file.stem}:{name}", PRIMITIVES))
        elif inspect.isfunction(value) and typing.get_type_hints(value).get("return") is Algorithm:
            found.append(EntryPoint(name, f"{file.stem}:{name}", ALGORITHMS))
    return found


def complain(name: str, origin: str, reason: str) -> None:
    """Say that a plug-in is left out, and why."""
    warnings.warn(f"plug-in {shown(name)} of {origin[:100]} is left out: {reason[:1000]}", stacklevel=3)
