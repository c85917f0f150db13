"""Callbacks that keep nothing alive: torch's C++ holds hooks on tensors, where Python's gc does not look."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any, cast


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Call a bound method while somebody else keeps its object; afterwards do nothing.

    A hook that holds what holds its tensor makes a cycle that nobody collects.

    Args:
        method: of an object that takes weak references.

    Returns: what a tensor, or another registry of torch's, may hold.
    """
    bound = cast("MethodType", method)
    owner, function = weakref.ref(bound.__self__), bound.__func__  # a call of WeakMethod is one of Python's

    def called(*args: Any) -> None:
        if (kept := owner()) is not None:
            function(kept, *args)

    return called
