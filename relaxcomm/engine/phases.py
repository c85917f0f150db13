"""Algorithms that take over in the middle of a run because the configuration says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from relaxcomm.config import Phase
from relaxcomm.engine.window import uncompiled


class Phases:
    """Where a run is in the phases of its configuration.

    Args:
        phases: in the order in which they begin.
        is_due: whether it is time for a phase.
        enter: switches to a phase.
    """

    def __init__(
        self, phases: tuple[Phase, ...], is_due: Callable[[Phase], bool], enter: Callable[[Phase], None]
    ) -> None:
        self.num_begun = 0
        self._phases, self._is_due, self._enter = phases, is_due, enter
        self._handle: RemovableHandle | None = None

    def hook(self, model: nn.Module) -> None:
        """Begin phases before forwards of the model; without any, its forwards cost nothing more."""
        if self._phases:
            self._handle = model.register_forward_pre_hook(uncompiled(self._forward_begins), prepend=True)

    def unhook(self) -> None:
        """Begin no more."""
        if self._handle is not None:
            self._handle.remove()

    def resume(self, num_begun: int) -> None:
        """Be where a run was in which so many phases had begun, if there are so many."""
        if num_begun != self.num_begun and 0 < num_begun <= len(self._phases):
            self.num_begun = num_begun
            self._enter(self._phases[num_begun - 1])

    def _forward_begins(self, module: nn.Module, inputs: Any) -> None:
        if not torch.is_grad_enabled():
            return
        while self.num_begun < len(self._phases) and self._is_due(self._phases[self.num_begun]):
            self.resume(self.num_begun + 1)
