"""Entry points of plug-ins: of what is installed, and of a folder or file that is not."""

from __future__ import annotations

import importlib
import inspect
import sys
import tomllib
import typing
import warnings
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.errors import ConfigError, PluginError
from relaxcomm.fields.frozen import Declared
from relaxcomm.roles import RELAXCOMM_PROTOCOL

ALGORITHMS = "relaxcomm.algorithms"
PRIMITIVES = "relaxcomm.primitives"
_VERSION = "RELAXCOMM_PROTOCOL"


def discover(group: str, included: Iterable[EntryPoint]) -> list[tuple[EntryPoint, Any]]:
    """What a group's entry points name; one that cannot be loaded is warned about and left out.

    Args:
        group: `ALGORITHMS` or `PRIMITIVES`.
        included: entry points of packages that are not installed.
    """
    loaded: dict[str, tuple[EntryPoint, Any]] = {}
    own = [point for point in included if point.group == group]
    for point in sorted([*entry_points(group=group), *own], key=lambda point: (point.name, point.value)):
        if point.name in loaded:
            if point.value != loaded[point.name][0].value:
                complain(point, f"the name is already taken by {loaded[point.name][0].value}")
            continue
        try:
            loaded[point.name] = (point, load(point))
        except PluginError as error:
            complain(point, str(error))
        except Exception as error:  # a broken plug-in must not take the others down
            complain(point, f"{type(error).__name__}: {error}")
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


def points_in(path: Path) -> list[EntryPoint]:
    """What a package's folder declares, or a file of Python would; its modules can be imported from then on.

    Args:
        path: a folder with a pyproject.toml, or a file with primitives and functions that return an
            `Algorithm`.
    """
    return _declared(path) if path.is_dir() else _defined(path)


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


def complain(point: EntryPoint, reason: str) -> None:
    """Say that a plug-in is left out, and why."""
    warnings.warn(f"plug-in {point.name!r} of {origin(point)} is left out: {reason}", stacklevel=3)


def origin(point: EntryPoint) -> str:
    """The distribution that provides it, or what it names."""
    return point.dist.name if point.dist is not None else point.value
