"""Names that are to go: they work as before, and say what to write instead."""

from __future__ import annotations

import functools
import inspect
import typing
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeVar

from relaxcomm.errors import ConfigError, DeprecatedWarning

T = TypeVar("T", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class deprecated:
    """Declare that an algorithm, a primitive or one of its parameters is to go.

    Before a function or class it speaks of all of it; inside `Annotated`, of that parameter. Whoever names it
    gets a `DeprecatedWarning`; listings and the schema mark it.

    Args:
        since: the first version, of the package that declares it, which says so.
        gone: the version in which it is no more.
        instead: what to write instead.

    Example:
        >>> from relaxcomm import Algorithm, Rule, all_reduce, parameters
        >>> @deprecated(since="0.3", gone="0.4", instead="local_sgd with steps=1")
        ... def averaging() -> Algorithm:
        ...     return Algorithm((Rule(payload=parameters(), exchange=all_reduce()),))
    """

    since: str
    gone: str
    instead: str

    def __call__(self, target: T) -> T:
        # The attribute of PEP 702, which other tools read, too.
        setattr(target, "__deprecated__", self.about(target, target.__name__))  # noqa: B010  # mypy knows no such one
        return target

    def about(self, target: Callable[..., Any], subject: str) -> str:
        """What is deprecated, since when, until when, and what to use."""
        package = target.__module__.partition(".")[0]
        return (
            f"{subject} is deprecated since version {self.since} of {package}, and gone in {self.gone}; "
            f"use {self.instead}"
        )


@dataclass(frozen=True, kw_only=True)
class renamed:
    """Declare, inside `Annotated`, the name that a parameter had: `density: Annotated[Share, renamed(…)]`.

    The old name is taken for the new one, with a `DeprecatedWarning`.

    Args:
        before: the old name.
        since: the first version, of the package that declares it, which has the new name.
        gone: the version in which the old name is no more.

    Example:
        >>> from typing import Annotated
        >>> from relaxcomm import Steps, Trigger, frozen
        >>> @frozen
        ... class seldom(Trigger):
        ...     steps: Annotated[Steps, renamed(before="period", since="0.3", gone="0.4")]
    """

    before: str
    since: str
    gone: str

    def as_deprecated(self, name: str) -> deprecated:
        """The same as is said of a parameter that goes for `name`."""
        return deprecated(since=self.since, gone=self.gone, instead=name)


def notice(target: Callable[..., Any]) -> str:
    """What is said of all of an algorithm's function or a primitive's class, or "" if it stays."""
    return str(vars(target).get("__deprecated__", ""))  # vars: a subclass is not what it derives from


def parameter_notices(target: Callable[..., Any]) -> Mapping[str, str]:
    """What is said of each parameter that goes, old names included."""
    return {
        name: one.about(target, f"{target.__name__}'s parameter {name!r}")
        for name, one in _marks(target)[0].items()
    }


def new_names(target: Callable[..., Any]) -> Mapping[str, str]:
    """The parameters that have other names now: new by old."""
    return _marks(target)[1]


def warn_of(target: Callable[..., Any]) -> None:
    """Say that a function or class is to go, if it is."""
    if text := notice(target):
        warnings.warn(text, DeprecatedWarning, stacklevel=3)


def update(target: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by their new names, with a warning for each that goes.

    Raises: ConfigError if one is given by both its names.
    """
    notices, names = parameter_notices(target), new_names(target)
    updated: dict[str, Any] = {}
    for name, value in given.items():
        new = names.get(name, name)
        if new in updated:
            raise ConfigError(f"{target.__name__} got {new!r} also by an old name; give {new!r} alone")
        updated[new] = value
    for name in given:
        if name in notices:
            warnings.warn(notices[name], DeprecatedWarning, stacklevel=3)
    return updated


def marked(target: Callable[..., Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON Schema of a function or class, with the mark of what is to go, for it or its parameters."""
    marks = {"deprecated": True} if notice(target) else {}
    properties = dict(made.get("properties", {}))
    for name, text in parameter_notices(target).items():
        if name in properties:
            said = properties[name].get("description", "")
            properties[name] = {
                **properties[name],
                "description": f"{text}. {said}".strip(),
                "deprecated": True,
            }
    return {**made, **marks, **({"properties": properties} if properties else {})}


def with_old_names(target: Callable[..., Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a mapping of arguments that takes old names, too, each alone."""
    names = new_names(target)
    required = made.get("required", [])
    choices: list[Any] = [{"not": {"required": pair}} for pair in _rivals(names)]
    for name in required:
        olds = [old for old, new in names.items() if new == name]
        choices += [{"anyOf": [{"required": [one]} for one in (name, *olds)]}] if olds else []
    if not names:
        return dict(made)
    properties = dict(made["properties"])
    for old, new in names.items():
        text = parameter_notices(target)[old]
        properties[old] = {**properties[new], "description": text, "deprecated": True}
    left = [name for name in required if name not in names.values()]
    return {**made, "properties": properties, "required": left, "allOf": choices}


def _rivals(names: Mapping[str, str]) -> list[list[str]]:
    """Pairs of names of the same parameter."""
    everything = {**names, **{new: new for new in names.values()}}
    return [list(pair) for pair in combinations(everything, 2) if everything[pair[0]] == everything[pair[1]]]


@functools.cache
def _marks(target: Callable[..., Any]) -> tuple[Mapping[str, deprecated], Mapping[str, str]]:
    """The marks of parameters by name, and new names by old ones."""
    marks: dict[str, deprecated] = {}
    names: dict[str, str] = {}
    for name, metadata in _metadata(target).items():
        for mark in metadata:
            if isinstance(mark, deprecated):
                marks[name] = mark
            if isinstance(mark, renamed):
                marks[mark.before] = mark.as_deprecated(name)
                names[mark.before] = name
    return marks, names


def _metadata(target: Callable[..., Any]) -> dict[str, tuple[Any, ...]]:
    """What `Annotated` holds for each parameter of a function or `@frozen` class."""
    if inspect.isclass(target):  # pydantic has resolved its types
        fields = getattr(target, "__pydantic_fields__", {})
        return {name: tuple(field.metadata) for name, field in fields.items()}
    hints = typing.get_type_hints(target, include_extras=True)
    return {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
