"""Entry points of plug-ins that are not installed: of a package's folder, or of a file of Python."""

from __future__ import annotations

import importlib.util
import inspect
import shlex
import sys
import tomllib
import typing
from importlib.metadata import EntryPoint
from pathlib import Path
from types import FunctionType, SimpleNamespace

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config.discovery import ALGORITHMS, PRIMITIVES, each
from relaxcomm.config.plugin_modules import module_at
from relaxcomm.config.primitive_classes import is_meant
from relaxcomm.errors import ConfigError, worded
from relaxcomm.system.files import read_at_most

_LONGEST_BYTES = 1_048_576


def points_in(path: Path) -> list[EntryPoint]:
    """What a package's folder declares, or a file of Python would; its modules can be imported from then on.

    Args:
        path: a folder with a pyproject.toml, or a file with primitives and functions that return an
            `Algorithm`.

    Raises: ConfigError for what is neither; PluginError for a file that cannot be run.
    """
    if path.is_dir():
        return _declared(path)
    if path.suffix != ".py":
        raise ConfigError(f"{path} is neither a package's folder nor a file of Python, which ends in .py")
    return _defined(path)


def is_path(name: str) -> bool:
    """Whether it can only be a path, and no installed name.

    Example:
        >>> is_path("./my_plugin"), is_path("my_plugin")
        (True, False)
    """
    return "/" in name or name.endswith((".py", "."))


def refuse_missing(name: str) -> None:
    """Raise ConfigError for what can only be a path, and nothing is there."""
    if is_path(name) and not Path(name).exists():
        raise ConfigError(f"{name}: No such file or directory; give the path of one that is there")


def _declared(folder: Path) -> list[EntryPoint]:
    """What the pyproject.toml of a folder declares."""
    if not (folder / "pyproject.toml").exists():
        said = f"{folder} is not a package's folder: it has no pyproject.toml"
        if files := sorted(folder.glob("*.py")):
            said += f"; a file of Python is checked by its own path, such as {shlex.quote(str(files[0]))}"
        raise ConfigError(said)
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
    for package in {point.value.partition(":")[0].partition(".")[0] for point in points}:
        _refuse_elsewhere(package, folder, source)
    return [one for point in points for one in each(point)]


def _refuse_elsewhere(package: str, folder: Path, source: Path) -> None:
    """Raise ConfigError for a package that would not be, or is not, imported from the folder."""
    module = sys.modules.get(package)
    if module is not None:
        places = [*getattr(module, "__path__", ()), getattr(module, "__file__", None) or ""]
    else:
        found = importlib.util.find_spec(package)
        places = [] if found is None else [*(found.submodule_search_locations or ()), found.origin or ""]
    if any(Path(place).resolve().is_relative_to(folder.resolve()) for place in places):
        return
    if module is None:
        instead = f", and {found.origin or places[0]} is another" if found is not None else ""
        beside = f", or into {folder / 'src'}" if source == folder else ""
        raise ConfigError(
            f"{folder} declares {package}, which is not in {source}{instead}; put the package there{beside}"
        )
    raise ConfigError(
        f"{package} is imported from {places[0]}, so nothing of {folder} would be looked at; write a "
        f"path such as ./{folder.name}, in a process that has not imported {package} yet"
    )


def _defined(file: Path) -> list[EntryPoint]:
    """What a file of Python would declare, were it a package."""
    sys.path.insert(0, str(file.resolve().parent))
    module = module_at(file)
    found = []
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) != module.__name__ or name.startswith("_"):
            continue
        if is_meant(name, value):
            found.append(EntryPoint(name, f"{module.__name__}:{name}", PRIMITIVES))
        elif inspect.isfunction(value) and _returns_algorithm(value):
            found.append(EntryPoint(name, f"{module.__name__}:{name}", ALGORITHMS))
    return found


def _returns_algorithm(function: FunctionType) -> bool:
    returned = SimpleNamespace(__annotations__={"return": function.__annotations__.get("return")})
    names = vars(sys.modules[function.__module__])
    try:
        return typing.get_type_hints(returned, names)["return"] is Algorithm
    except Exception:  # a name for type checkers alone
        return False
