"""An optimizer whose step calls that of a class above it runs its hooks twice: torch wraps each of them."""

from __future__ import annotations

import sys
from types import FrameType, ModuleType

from torch.optim import Optimizer, optimizer as module

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
            "wrapper" in frame.f_code.co_name and frame.f_locals.get("self") is self._optimizer
            for frame in callers_in(module)
        )


def callers_in(module: ModuleType) -> list[FrameType]:
    """The frames of a module's functions in which a hook of an optimizer runs, the innermost first."""
    names, found = vars(module), []
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None:
            break
        if frame.f_globals is names:
            found.append(frame)
        frame = frame.f_back
    return found
