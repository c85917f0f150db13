"""Which classes of a module YAML can name, and which were meant for it and are broken."""

from __future__ import annotations

import inspect
from typing import TypeGuard

from relaxcomm.fields.broken import Broken
from relaxcomm.fields.frozen import Declared


def is_meant(name: str, value: object) -> bool:
    """Whether a name is meant for YAML: that of a primitive, or of what should be one and is broken."""
    if name.startswith("_"):
        return False
    if isinstance(value, Broken) or is_primitive(value):
        return True
    stated = inspect.isclass(value) and {"__dataclass_fields__", "facts"} <= vars(value).keys()
    return (stated or _is_declared(value)) and not _is_base(value)  # type: ignore[arg-type]


def _is_declared(value: object) -> TypeGuard[type[Declared]]:
    return inspect.isclass(value) and issubclass(value, Declared)


def _is_base(cls: type) -> bool:
    """Whether it is there for others: some derive from it, or it leaves methods to those that will."""
    return bool(cls.__subclasses__() or getattr(cls, "__abstractmethods__", frozenset()) & vars(cls).keys())


def is_primitive(value: object) -> TypeGuard[type[Declared]]:
    """Whether it is a class that can be named in YAML: `@frozen`, with a role, and nothing left abstract."""
    return (
        _is_declared(value)
        and "__dataclass_fields__" in vars(value)
        and not inspect.isabstract(value)
        and isinstance(getattr(value, "role", None), str)
    )


def lack_of(found: object) -> str:
    """What a primitive has, and this has not."""
    if inspect.ismodule(found):
        return "the module has none; import them into it (of a package its __init__), or name module:Class"
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        return f"it lacks {', '.join(missing)}"
    if _is_declared(found) and "__dataclass_fields__" not in vars(found):
        return "write @frozen above it"
    return "derive it from a role, such as Compressor"
