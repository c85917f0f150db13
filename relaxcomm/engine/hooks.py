"""What hangs on the model and its optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol, cast

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle


class Follower(Protocol):
    """Who is told of what the training loop does."""

    def forward_begins(self, module: nn.Module, inputs: Any) -> None:
        """The model is about to be called."""

    def forward_ends(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """It has returned something."""

    def part_begins(self, module: nn.Module, inputs: Any) -> None:
        """A part of it is about to be called; told only after `watch_parts`."""

    def gradient_arrives(self, parameter: torch.Tensor) -> None:
        """A parameter has its gradient; told only after `watch_parts`."""

    def step_begins(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An optimizer is about to step."""

    def step_ends(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """It has stepped."""


class Hooks:
    """The hooks on a model and its optimizers, which stay while the algorithms behind them change.

    A switch may happen in one of them: there torch allows none to be added or removed.

    Args:
        model: whose forward is followed.
        optimizers: whose steps are.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self._model, self._optimizers = model, optimizers
        self.follower: Follower | None = None
        """Whom they tell; None while nobody follows the loop."""
        self._handles: list[RemovableHandle] = []
        self._of_parts: list[RemovableHandle] = []

    def hang(self) -> None:
        """Register all."""
        add = self._handles.append
        add(self._model.register_forward_pre_hook(self._telling("forward_begins"), prepend=True))
        add(self._model.register_forward_hook(self._telling("forward_ends")))
        for optimizer in self._optimizers:
            add(optimizer.register_step_pre_hook(self._telling("step_begins")))
            add(optimizer.register_step_post_hook(self._telling("step_ends")))

    def watch_parts(self) -> None:
        """Follow the model's parts and gradients, too: the training loop may not call the model itself."""
        if self._of_parts:
            return
        parts = [module for module in self._model.modules() if module is not self._model]
        for part in parts:
            self._of_parts.append(part.register_forward_pre_hook(self._telling("part_begins"), prepend=True))
        for parameter in self._model.parameters():
            if parameter.requires_grad:
                hook = self._telling("gradient_arrives")
                # torch leaves this method without types
                self._of_parts.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]

    def unwatch_parts(self) -> None:
        """Follow them no more: the model is called."""
        if self._of_parts:
            _remove(self._of_parts)

    def remove(self) -> None:
        """Remove all, as before attach."""
        _remove(self._handles)
        self.unwatch_parts()

    def _telling(self, event: str) -> Hook:
        def tell(*args: Any) -> None:
            if self.follower is not None:
                getattr(self.follower, event)(*args)

        return Hook(tell)


class Hook:
    """A callback that copies and pickles of a model do not take with them: there it does nothing.

    Args:
        callback: what is called.
    """

    def __init__(self, callback: Callable[..., None]) -> None:
        self._callback = uncompiled(callback)

    def __call__(self, *args: Any) -> None:
        self._callback(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        # Takes any arguments, gives None, and can be loaded where relaxcomm is not installed.
        return getattr, (nullcontext(), "__exit__")


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()


def uncompiled(callback: Callable[..., None]) -> Callable[..., None]:
    """Keep `torch.compile` from tracing a hook: it breaks the graph in front of the model instead."""
    kept = torch.compiler.disable(callback)  # type: ignore[no-untyped-call]  # torch's
    return cast("Callable[..., None]", kept)
