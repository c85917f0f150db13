"""Names to primitives and algorithms: the bundled ones and third parties' are found the same way."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

from pydantic import ConfigDict, ValidationError, validate_call

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config.discovery import ALGORITHMS, PRIMITIVES, Found, LeftOut, discover
from relaxcomm.config.plugin_modules import forget_failures
from relaxcomm.config.uninstalled import is_path, points_in
from relaxcomm.errors import ConfigError, PluginError, RelaxcommError, worded
from relaxcomm.fields.allowed import with_article
from relaxcomm.fields.frozen import Declared
from relaxcomm.fields.validation import closest, meant, refusal, refuse_bools, shown, signature_of
from relaxcomm.system.time_limit import ENDINGS

_included: list[EntryPoint] = []  # of packages that are not installed
_left_out: dict[str, Mapping[str, LeftOut]] = {}  # by group, as it was discovered last


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

    @functools.cached_property
    def _checked(self) -> Callable[..., Algorithm]:
        return validate_call(config=ConfigDict(strict=True, arbitrary_types_allowed=True))(self.build)

    def __call__(self, **parameters: object) -> Algorithm:
        """Build the algorithm.

        Raises: ConfigError for an unknown, missing or wrong parameter; PluginError if it cannot be built.
        """
        try:
            refuse_bools(f"algorithm {self.name}", self.build, parameters)
            built = self._checked(**parameters)
        except ValidationError as error:
            raise refusal(error, f"algorithm {self.name}", self.build) from None
        except RelaxcommError:
            raise
        except ENDINGS:
            raise
        except BaseException as error:
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
    return {one.name: Entry(one.name, one.target, one.origin) for one in _discovered(ALGORITHMS)}


@functools.cache
def primitives() -> Mapping[str, Mapping[str, type[Declared]]]:
    """Every discovered primitive by role and name."""
    found: dict[str, dict[str, type[Declared]]] = {}
    for one in _discovered(PRIMITIVES):
        found.setdefault(one.target.role, {})[one.name] = one.target
    return found


def _discovered(group: str) -> list[Found]:
    found, left_out = discover(group, _included)
    _left_out[group] = {one.name: one for one in left_out}
    return found


def refuse_left_out(name: str) -> None:
    """Raise PluginError, from its cause, for the name of what was discovered and left out."""
    for broken in _left_out.values():
        if name in broken:
            one = broken[name]
            raise PluginError(f"{shown(name)} of {one.origin} is left out: {one.reason}") from one.error


def algorithm(name: str) -> Entry:
    """The algorithm `name`.

    Raises: ConfigError with the closest match for an unknown name; PluginError for one that is left out.
    """
    if name not in algorithms():
        refuse_left_out(name)
        builds = {one: entry.build for one, entry in algorithms().items()}
        _refuse_call(name, builds, "{{name: {}, parameter: value}}")
        if is_path(name) or ":" in name:
            raise ConfigError(
                f"unknown algorithm {shown(name)}{meant(name, algorithms()) or ';'} one of your own has its "
                "name from an entry point, in a package as relaxcomm new-algorithm makes it"
            )
        raise ConfigError(f"unknown algorithm {shown(name)}{closest(name, algorithms())}")
    return algorithms()[name]


def primitive(role: str, name: str) -> type[Declared]:
    """The primitive `name` for a role such as "trigger".

    Raises: ConfigError with the closest match for an unknown name, or the role that it has; PluginError for
        one that is left out.
    """
    known = primitives()
    if name in known.get(role, {}):
        return known[role][name]
    refuse_left_out(name)
    _refuse_call(name, known.get(role, {}), "{{{}: {{parameter: value}}}}")
    elsewhere = [other for other, names in known.items() if name in names]
    if elsewhere:
        is_one, not_one = with_article(elsewhere[0]), with_article(role)
        raise ConfigError(f"{name!r} is {is_one}, not {not_one}{closest(name, known.get(role, {}))}")
    raise ConfigError(f"unknown {role} {shown(name)}{closest(name, known.get(role, {}))}")


def _refuse_call(name: str, known: Mapping[str, Callable[..., object]], form: str) -> None:
    """Raise ConfigError for a known name with its arguments in brackets, as Python has them."""
    called, bracket, _ = name.partition("(")
    if bracket and called in known:
        takes = inspect.signature(known[called]).parameters
        instead = f"{form.format(called)}; it takes: {signature_of(known[called])}" if takes else called
        raise ConfigError(f"{shown(name)} is not allowed; write {instead}")


def include(path: Path) -> list[EntryPoint]:
    """Make known what a package's folder, or a file of Python, declares, without installing it.

    It takes the place of what was included under the same name, or from the same module, before.

    Args:
        path: a folder with a pyproject.toml, or a file with primitives and functions that return an
            `Algorithm`.

    Returns: the entry points that it has, or would have.
    """
    forget_failures()
    points = points_in(path)
    names, modules = {(point.group, point.name) for point in points}, {point.module for point in points}
    others = (one for one in _included if (one.group, one.name) not in names and one.module not in modules)
    _included[:] = [*others, *points]
    algorithms.cache_clear()
    primitives.cache_clear()
    return points
