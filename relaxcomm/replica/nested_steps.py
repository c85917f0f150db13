"""An optimizer whose step calls that of a class above it runs its hooks twice: torch wraps each of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

from torch.optim import Optimizer, optimizer as module

_MODULE = vars(module)
_DEPTH = 42  # frames from a hook up to whoever calls the outermost step; wrappers of step() lie between


class NestedSteps:
    """Tells the step that the training loop has called from those that are called inside it.

    Args:
        optimizer: whose hooks ask.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._may_nest = sum("step" in vars(cls) for cls in type(optimizer).__mro__) > 2  # Optimizer has one

    def is_inside(self) -> bool:
        """Whether the hook that asks belongs to a step inside another one of the same optimizer."""
        return self._may_nest and self._num_wrappers() > 1

    def _num_wrappers(self) -> int:
        return sum(
            frame.f_locals.get("self") is self._optimizer
            for frame in callers()
            if frame.f_globals is _MODULE and "wrapper" in frame.f_code.co_name
        )


def callers() -> Iterator[FrameType]:
    """The frames in which a hook of an optimizer runs, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None:
            return
        yield frame
        frame = frame.f_back
