"""Where the engine hooks into the training loop, and when a step is closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from relaxcomm.engine.backward import Backward
from relaxcomm.engine.joining import Joining
from relaxcomm.engine.run import Run
from relaxcomm.engine.step import Step
from relaxcomm.errors import UsageError


class Window:
    """Follows the loop: forward, backward, step; one tick of the clock for each optimizer step.

    A step that a GradScaler skipped is closed by the next forward, which sees that the scale fell.
    Hooks on the root's output find the end of the outermost backward: under reentrant
    checkpointing, a callback queued from inside fires when the nested backward ends.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.step = Step(run)
        self.backward = Backward(run, self._begin)
        self.joining = Joining(run, self.backward, self.step)
        self._pending = False
        self._awaiting_end = False
        self._end_of_backward = self._reported(self._backward_ended)
        self._handles: list[RemovableHandle] = []

    def hook(self) -> None:
        """Attach to the model and the optimizer."""
        model, optimizer = self.run.model, self.run.optimizer
        self._handles += [
            model.register_forward_pre_hook(self._reported(self._forward_begins), prepend=True),
            model.register_forward_hook(uncompiled(self._forward_ends)),
            *self.backward.hook(),
        ]
        if optimizer is not None:
            self._handles += [
                optimizer.register_step_pre_hook(self._reported(self._step_begins)),
                optimizer.register_step_post_hook(self._reported(self._step_ended)),
            ]

    def unhook(self) -> None:
        """Detach from everything."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def settle(self) -> None:
        """Close a step that a GradScaler skipped on this rank."""
        if self._pending and self._scale_fell():
            self._pending = False
            self._close_step()

    def _reported(self, callback: Callable[..., None]) -> Callable[..., None]:
        """Tell waiting peers when a callback fails here."""

        def reported(*args: Any) -> None:
            try:
                with self.run.statistics.busy():
                    callback(*args)
            except BaseException as error:
                self.run.transport.announce(f"failed: {type(error).__name__}: {error}")
                raise

        return uncompiled(reported)

    def _forward_begins(self, module: nn.Module, inputs: Any) -> None:
        if self.backward.begun:
            raise UsageError(
                "the last backward did not end: it raised an error, and peers wait for its gradients"
            )
        self._awaiting_end = False
        if torch.is_grad_enabled():
            self.settle()

    def _forward_ends(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            for tensor in _tensors(output):
                if tensor.requires_grad:
                    tensor.register_hook(self._backward_begins)  # type: ignore[no-untyped-call]  # torch's

    def _backward_begins(self, gradient: Tensor) -> None:
        if not self._awaiting_end:
            self._awaiting_end = True
            Variable._execution_engine.queue_callback(self._end_of_backward)

    def _begin(self) -> None:
        """A backward that reaches parameters; `autograd.grad` does not come here."""
        if not self._awaiting_end:
            self._backward_begins(torch.empty(0))
        self._remember_scale()
        self.joining.take_part(self.backward.is_due)

    def _backward_ended(self) -> None:
        self._awaiting_end = False
        if self.run.micro is not None and self.run.micro.arrived:
            self.run.micro.add()
        if not self.run.paused:
            if not self._pending and not self.backward.begun:
                self._remember_scale()
            self._pending = True
        if self.backward.begun:
            self.backward.end()
        if self.run.optimizer is None and not self.run.paused:
            self._pending = False
            self.run.tick()

    def _step_begins(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer
        if closure is not None:
            raise UsageError(
                "step(closure) is not supported: it runs backward inside the step; call backward, then step()"
            )
        if self.run.unsynchronised and not self.run.synchronised and self.backward.is_due():
            raise UsageError(
                "optimizer.step() after backward under no_sync() only: the gradients of this step were never "
                "exchanged; run the last backward of each step outside no_sync()"
            )
        self._apply_due()
        self.step.before()

    def _step_ended(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._pending = False
        self._exchange_and_tick()

    def _apply_due(self) -> None:
        self.joining.take_part(self.step.lands)
        self.step.apply_due()

    def _close_step(self) -> None:
        self._apply_due()
        self._exchange_and_tick()

    def _exchange_and_tick(self) -> None:
        self.joining.take_part(self.step.is_due)
        self.step.exchange()
        self.run.drift.check(self.step.made_equal)
        self.run.tick()

    def _remember_scale(self) -> None:
        scaler = self.run.scaler
        if scaler is not None and scaler.is_enabled():
            device = self.run.parameters[0].tensor.device
            scale = scaler.scale(torch.ones((), device=device))
            assert isinstance(scale, Tensor)
            self.run.gradient_scale = scale

    def _scale_fell(self) -> bool:
        scaler, before = self.run.scaler, self.run.gradient_scale
        if scaler is None or before is None:
            return False
        return bool(scaler.get_scale() < before.item())


def _tensors(output: Any) -> Iterator[Tensor]:
    """The tensors in a module's output, however it is nested."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _tensors(value)
    elif is_dataclass(output):
        for field in fields(output):
            yield from _tensors(getattr(output, field.name))


def uncompiled(callback: Callable[..., None]) -> Callable[..., None]:
    """Keep `torch.compile` from tracing a hook: it breaks the graph in front of the model instead."""
    kept = torch.compiler.disable(callback)  # type: ignore[no-untyped-call]  # torch's
    return cast("Callable[..., None]", kept)
