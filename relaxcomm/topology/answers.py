"""What the methods of a topology return, which may be a plug-in."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from relaxcomm.errors import PluginError
from relaxcomm.fields.validation import shown


def whole(value: Any, method: str, topology: object, world_size: int) -> int:
    """A number of exchanges, as `period_steps` has to return it."""
    if isinstance(value, Integral) and value >= 1:  # type: ignore[operator]  # numbers declare no order
        return int(value)
    raise PluginError(
        f"{method} of {topology!r} with {world_size} workers returned {shown(value)}; return a whole "
        "number of exchanges, 1 or more"
    )


def others(value: Any, method: str, topology: object, rank: int, world_size: int, step: int = 0) -> object:
    """Ranks but for one, as `listeners` has to return them."""
    are_ranks = isinstance(value, Sequence) and all(isinstance(one, Integral) for one in value)
    if are_ranks and len({*value} & ({*range(world_size)} - {rank})) == len(value):
        return value
    raise PluginError(
        f"{method} of {topology!r} with {world_size} workers returned {shown(value)} for rank {rank} at "
        f"exchange {step}; return a list of other ranks, from 0 to {world_size - 1}, each once"
    )
