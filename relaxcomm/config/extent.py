"""How deep and how much a configuration may be: what is walked through must have an end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from relaxcomm.errors import ConfigError

DEEPEST = 32
_MOST = 20_000


def too_deep(place: str) -> ConfigError:
    """The error for what lies too deep."""
    return ConfigError(
        f"{place}: lists and mappings lie more than {DEEPEST} deep in each other; {DEEPEST} are allowed"
    )


def check_extent(root: object, parts: Callable[[Any], Iterable[Any]]) -> None:
    """Refuse what is too deep or too much; what is in several places counts in each.

    Args:
        root: where to begin.
        parts: what lies directly in something.

    Raises: ConfigError.

    Example:
        >>> circle = []
        >>> circle.append(circle)
        >>> check_extent(circle, parts_of)
        Traceback (most recent call last):
            ...
        relaxcomm.errors.ConfigError: configuration: lists and mappings lie more than 32 deep ...
    """
    waiting, count = [(root, 1)], 0
    while waiting:
        one, depth = waiting.pop()
        count += 1
        if depth > DEEPEST:
            raise too_deep("configuration")
        if count > _MOST:
            raise ConfigError(
                f"a configuration holds {_MOST:,} values at most, what is repeated by name each time"
            )
        waiting.extend((part, depth + 1) for part in parts(one))


def parts_of(value: object) -> Iterable[object]:
    """What lies in a list or a mapping."""
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    return value if isinstance(value, list | tuple | set | frozenset) else ()
