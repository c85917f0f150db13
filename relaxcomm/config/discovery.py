"""What entry points of plug-ins name: found, loaded, or left out with a reason."""

from __future__ import annotations

import inspect
import re
import sys
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from relaxcomm.config.plugin_modules import module_named
from relaxcomm.config.primitive_classes import is_meant, is_primitive, lack_of
from relaxcomm.errors import PluginError, worded
from relaxcomm.fields.broken import Broken
from relaxcomm.fields.validation import shown
from relaxcomm.roles import RELAXCOMM_PROTOCOL
from relaxcomm.system.time_limit import ENDINGS
from relaxcomm.system.warn import warn

ALGORITHMS = "relaxcomm.algorithms"
PRIMITIVES = "relaxcomm.primitives"
_VERSION = "RELAXCOMM_PROTOCOL"
_OWN_PACKAGES = ("relaxcomm", "relaxcomm_algorithms")
_SINCE_1 = (
    "state most_entries in CompressorFacts, and wide and hears in PayloadFacts, unless replace takes them "
    "over; write Exchange.stages for ExchangeFacts.operations, bytes_sent and answers_sent; read "
    f"cx.bucket_part for cx.place; then set {_VERSION} = {RELAXCOMM_PROTOCOL}"
)
"""What plug-ins of protocol 1 have to change."""


@dataclass(frozen=True)
class Found:
    """What an entry point names.

    Args:
        name: what users type.
        target: what was loaded.
        entry_point: module and name, as an entry point has them.
        origin: the distribution that provides it.
    """

    name: str
    target: Any
    entry_point: str
    origin: str


@dataclass(frozen=True)
class LeftOut:
    """What an entry point names, and nobody can use.

    Args:
        name: what users would type.
        origin: the distribution that provides it.
        error: why it is left out.
    """

    name: str
    origin: str
    error: BaseException

    @property
    def reason(self) -> str:
        """In words."""
        return (str(self.error) if isinstance(self.error, PluginError) else worded(self.error))[:1000]


def discover(group: str, included: Iterable[EntryPoint]) -> tuple[list[Found], list[LeftOut]]:
    """What a group's entry points name, and what of it cannot be loaded, which is warned about.

    Args:
        group: `ALGORITHMS` or `PRIMITIVES`.
        included: entry points of packages that are not installed.
    """
    found: dict[str, Found] = {}
    left_out: list[LeftOut] = []
    uninstalled = [point for point in included if point.group == group]
    for point in sorted([*entry_points(group=group), *uninstalled], key=_bundled_first):
        source = point.dist.name if point.dist is not None else point.value
        for one in each(point):
            try:
                if one.name not in found:
                    found[one.name] = Found(one.name, load(one), one.value, source)
                elif one.value != found[one.name].entry_point:
                    raise PluginError(f"the name is already taken by {found[one.name].entry_point}")
            except ENDINGS:
                raise
            except BaseException as error:  # a broken plug-in must not take the others down
                left_out.append(LeftOut(one.name, source, error))
    _complain(left_out)
    return list(found.values()), left_out


def _complain(left_out: Iterable[LeftOut]) -> None:
    """Say what is left out, and why: once for all that one thing has broken."""
    names: dict[tuple[str, str], list[str]] = {}
    for one in left_out:
        names.setdefault((one.origin, one.reason), []).append(shown(one.name))
    for (origin, reason), broken in names.items():
        plugins = f"plug-in {broken[0]}" if len(broken) == 1 else f"plug-ins {', '.join(broken)}"
        left = f"{plugins} of {origin[:100]} {'is' if len(broken) == 1 else 'are'} left out"
        warn(f"{left}: {reason}", UserWarning)


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
        module = _loaded(point)
    except ENDINGS:
        raise
    except BaseException:
        return [point]
    package = module.__name__.partition(".")[0]
    defined = [
        EntryPoint(name, f"{module.__name__}:{name}", PRIMITIVES)
        for name, value in vars(module).items()
        if is_meant(name, value) and value.__module__.partition(".")[0] == package
    ]
    return defined or [point]


def load(point: EntryPoint) -> Any:
    """The primitive, or the function that returns an `Algorithm`, that an entry point names.

    Raises: PluginError for a name or a place that cannot be, a package that was not written for this
        version of the plug-in protocol, or what is neither; and whatever importing it raises.
    """
    found = _loaded(point)
    if isinstance(found, Broken):
        raise found.why()
    if point.group == ALGORITHMS and not inspect.isfunction(inspect.unwrap(found)):
        raise PluginError(
            f"{shown(found)} is not a function that returns an Algorithm; write one, with def, also around a "
            "class or a functools.partial"
        )
    if point.group == PRIMITIVES and not is_primitive(found):
        raise PluginError(f"{shown(found)} is not a complete primitive or topology; {lack_of(found)}")
    if _package(point) not in _OWN_PACKAGES:
        _check_types(found)
    return found


def _check_types(found: Any) -> None:
    """Refuse a plug-in whose parameters nobody could check, or describe."""
    try:
        typing.get_type_hints(inspect.unwrap(found))
    except Exception as error:
        raise PluginError(
            f"the types of its parameters cannot be read: {worded(error)}; import them also where it runs, "
            "not under TYPE_CHECKING alone"
        ) from error


def _loaded(point: EntryPoint) -> Any:
    """What it names, of a package that was written for this version of the protocol."""
    if not re.fullmatch(r"[\w.-]{1,100}", point.name):
        raise PluginError("a name has letters, digits, _, - and ., 100 at most")
    if not EntryPoint.pattern.match(point.value):
        raise PluginError(f"{shown(point.value)} is no place; write package.module:name")
    package = _package(point)
    if package not in _OWN_PACKAGES:
        module_named(point.module)
    found = point.load()
    declared = getattr(sys.modules[package], _VERSION, None)
    if declared is None:
        raise PluginError(
            f"{package} does not say for which plug-in protocol it was written; add {_VERSION} = "
            f"{RELAXCOMM_PROTOCOL} to its top-level module"
        )
    if not isinstance(declared, int):
        raise PluginError(f"{_VERSION} of {package} is {shown(declared)}; it is a whole number")
    if declared != RELAXCOMM_PROTOCOL:
        newer = "relaxcomm" if declared > RELAXCOMM_PROTOCOL else f"{package}, or, if it is yours, {_SINCE_1}"
        raise PluginError(
            f"{package} was written for plug-in protocol {declared}, and this relaxcomm has "
            f"{RELAXCOMM_PROTOCOL}; install a newer {newer}"
        )
    return found
