"""What methods of plug-ins return, looked at where it comes in."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from relaxcomm.errors import PluginError
from relaxcomm.fields.validation import shown

Look: TypeAlias = Callable[..., Any]
"""Is given what a method has returned, its name, whose it is and what it was asked with; returns what its
callers get, or raises PluginError."""

Looks: TypeAlias = Mapping[str, Look]
"""By the names of methods."""


def error(value: Any, wanted: str, method: str, *owners: object) -> PluginError:
    """That a method gives something else than it should.

    Args:
        value: what it gives.
        wanted: what to do instead.
        method: its name and how it gave that, such as "run yielded".
        owners: whose method it is, and what it worked with.
    """
    name, _, how = method.partition(" ")
    whose = " with ".join(map(repr, owners))
    is_array = hasattr(value, "shape") and hasattr(value, "dtype")  # torch takes long to import
    got = f"{list(value.shape)} of {value.dtype}" if is_array else shown(value)
    return PluginError(f"{name} of {whose} {how or 'returned'} {got}; {wanted}")


def one_of(kinds: Any, wanted: str) -> Look:
    """Accepts what is of some types.

    Args:
        kinds: the types, as `isinstance` takes them.
        wanted: what to return, for the error.
    """

    def look(value: object, method: str, owner: object, *_: object, **__: object) -> object:
        if isinstance(value, kinds):
            return value
        raise error(value, wanted, method, owner)

    return look


def looked_at(made: Any, name: str, look: Look, *, is_property: bool) -> Any:
    """A method or property as it stands in its class, static or not, whose result is looked at."""

    @functools.wraps(made)
    def checked(self: Any, *of: Any, **given: Any) -> Any:
        found = made.__get__(self, type(self))
        return look(found if is_property else found(*of, **given), name, self, *of, **given)

    return property(checked) if is_property else checked
