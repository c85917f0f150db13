"""What `torch.compile` leaves alone: callbacks of the training loop, which may itself be compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import torch

P = ParamSpec("P")
R = TypeVar("R")

_WHOLE = (
    "relaxcomm's hooks are no part of a graph: with fullgraph=True, attach what torch.compile(model) returns "
    "instead of the model inside it, and leave fullgraph out of model.compile(), which compiles the model in "
    "place, and where an optimizer's step is compiled"
)


def uncompiled(callback: Callable[P, R]) -> Callable[P, R]:
    """Keep `torch.compile` from tracing a callback and all that it calls; it breaks the graph in front of it.

    Each call takes about a microsecond more.

    Args:
        callback: what PyTorch calls.

    Returns: a function that does the same.
    """
    kept = torch.compiler.disable(callback, reason=_WHOLE)  # type: ignore[no-untyped-call]  # torch's
    return cast("Callable[P, R]", kept)
