"""Checks of how something is declared: its arguments, its words, its equality."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

from relaxcomm.checks.finding import Broken, expect
from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.errors import RelaxcommError
from relaxcomm.fields import docstrings


class _Nonsense:
    """A value of no type that anything takes."""


def bad_arguments_are_refused(build: Callable[..., Any], target: Any, arguments: Mapping[str, Any]) -> None:
    """An unknown parameter, and a value of the wrong type for each, is an error of relaxcomm's own."""
    _refuses(build, {**arguments, "no_such_parameter": 1}, "an unknown parameter")
    for name, parameter in inspect.signature(target).parameters.items():
        expect(
            parameter.annotation is not parameter.empty,
            f"the parameter {name} has no type, so nothing checks what users pass",
        )
        _refuses(build, {**arguments, name: _Nonsense()}, f"{name} of a wrong type")


def _refuses(build: Callable[..., Any], arguments: Mapping[str, Any], what: str) -> None:
    try:
        made = build(**arguments)
    except RelaxcommError:
        return
    except Exception as error:
        raise Broken(f"{what} raises {type(error).__name__} ({error}), not a ConfigError") from error
    raise Broken(f"{what} is accepted, and makes {made!r}")


def words_are_there(target: object) -> None:
    """Listings show the first line of the docstring, and `show` the meaning of each parameter."""
    text = docstrings.read(target)
    expect(bool(text.summary), "there is no docstring, of which listings show the first line")
    signature = inspect.signature(target)  # type: ignore[arg-type]  # a class or a function
    unsaid = [name for name in signature.parameters if name not in text.arguments]
    expect(not unsaid, f"the docstring's Args do not say what {', '.join(unsaid)} means")


def name_is_declared(name: str, algorithm: Algorithm) -> None:
    """An algorithm is called as its entry point, which is what users write."""
    expect(
        algorithm.name == name,
        f"users write {name!r}, but tables, metrics and files of results would say {algorithm.name!r}; "
        f"return Algorithm(…, name={name!r})",
    )


def equal_means_equal(build: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Ranks compare what they run by its text, and rules by equality."""
    one, other = build(**arguments), build(**arguments)
    expect(one == other, "two that are built alike are not equal; declare it with @frozen")
    expect(repr(one) == repr(other), f"two that are built alike print differently: {one!r} and {other!r}")
    found = _unhashable("it", one)
    expect(found is None, f"{found} cannot be hashed; take what can, such as a tuple of pairs for a mapping")


def _unhashable(name: str, value: object) -> str | None:
    """The innermost field that cannot be hashed, and what it holds."""
    try:
        hash(value)
    except TypeError:
        inner: Iterable[tuple[str, object]] = ()
        if is_dataclass(value):
            inner = ((field.name, getattr(value, field.name)) for field in fields(value))
        elif isinstance(value, tuple):
            inner = ((name, one) for one in value)
        found = next(filter(None, (_unhashable(*one) for one in inner)), None)
        return found or f"{name}={value!r}"
    return None


def declaration_checks(
    build: Callable[..., Any], target: Any, arguments: Mapping[str, Any]
) -> dict[str, Callable[[], None]]:
    """The checks of a declaration, by name.

    Args:
        build: makes one from arguments.
        target: the class or function, with signature and docstring.
        arguments: that make one.
    """
    return {
        "words": partial(words_are_there, target),
        "arguments": partial(bad_arguments_are_refused, build, target, arguments),
        "equality": partial(equal_means_equal, build, arguments),
    }
