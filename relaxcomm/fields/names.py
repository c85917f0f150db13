"""Names, of which one may stand alone."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field


def listed(names: object) -> object:
    """A tuple of names: one may stand alone, and a list is as good.

    Example:
        >>> listed("exp_avg"), listed(["a", "b"])
        (('exp_avg',), ('a', 'b'))
    """
    if isinstance(names, str):
        return (names,)
    return tuple(names) if isinstance(names, list) else names


_Several = Annotated[tuple[str, ...], Field(min_length=1)]
Names = Annotated[_Several, BeforeValidator(listed, json_schema_input_type=str | _Several)]
"""One name or several."""
Moments = Annotated[tuple[str, ...], BeforeValidator(listed, json_schema_input_type=str | tuple[str, ...])]
"""What optimizers keep, by name, such as "exp_avg"; or nothing."""
