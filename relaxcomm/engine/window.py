"""Where the engine hooks into the training loop, and when a step is closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from relaxcomm.engine.backward import Backward
from relaxcomm.engine.hooks import Hooks, uncompiled
from relaxcomm.engine.joining import Joining
from relaxcomm.engine.run import Run
from relaxcomm.engine.scaling import check_scaler
from relaxcomm.engine.step import Step
from relaxcomm.engine.wrappers import check_forward
from relaxcomm.errors import UsageError

if TYPE_CHECKING:
    from relaxcomm.engine.course import Course


Callback = TypeVar("Callback", bound=Callable[..., None])


def _telling_peers(callback: Callback) -> Callback:
    """Tell waiting peers when a callback fails here."""

    @wraps(callback)
    def told(window: Window, *args: Any) -> None:
        try:
            callback(window, *args)
        except BaseException as error:
            window.run.transport.announce(f"failed: {type(error).__name__}: {error}")
            raise

    return cast("Callback", told)


class Window:
    """Follows the loop: forward, backward, step; one tick of the clock for each optimizer step.

    Several optimizers make one step: it begins with the first one's and ends when each has stepped.
    A step that a GradScaler skipped is closed by the next forward, which sees that the scale fell.
    Hooks on the root's output find the end of the outermost backward: under reentrant
    checkpointing, a callback queued from inside fires when the nested backward ends.

    Args:
        run: the run of an algorithm.
        hooks: that tell it of the loop.
    """

    def __init__(self, run: Run, hooks: Hooks) -> None:
        self.run = run
        self.step = Step(run)
        self.backward = Backward(run, self._begin)
        self.joining = Joining(run, self.backward, self.step)
        self.course: Course | None = None
        """Who switches between steps, while a switch is still to come."""
        self._hooks = hooks
        self._pending = False
        self._awaiting_end = False
        self._called = False  # the model itself was, in this step
        self._stepped: list[Optimizer] = []
        self._opened = False  # the first optimizer's step has begun, and not every one has ended
        self._end_of_backward = uncompiled(self._backward_ended)
        self._handles: list[RemovableHandle] = []

    def hook(self) -> None:
        """Follow the loop."""
        self._hooks.follower = self
        self._handles += self.backward.hook()

    def unhook(self) -> None:
        """Follow it no more."""
        self._hooks.follower = None
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @property
    def is_between_steps(self) -> bool:
        """Whether no gradients are there that belong to the step that comes next."""
        run = self.run
        return not (self.backward.begun or self._opened or run.synchronised or run.unsynchronised)

    def settle(self) -> None:
        """Close a step that a GradScaler skipped on this rank."""
        if self._is_skipped():
            self._close_step()

    @_telling_peers
    def forward_begins(self, module: nn.Module, inputs: Any) -> None:
        """The model is about to be called."""
        with self.run.statistics.busy():
            if self.backward.begun:
                raise UsageError(
                    "the last backward did not end: it raised an error, and peers wait for its gradients"
                )
            self._awaiting_end = False
            if torch.is_grad_enabled():
                self._called = True
                self._hooks.unwatch_parts()
                check_forward(self.run.model, module, self.run.parameters[0].tensor)
                self.settle()
                if self.course is not None:
                    self.course.forward_begins()

    @_telling_peers
    def forward_ends(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """It has returned something, on which a backward may begin."""
        if torch.is_grad_enabled():
            check_forward(self.run.model, module, self.run.parameters[0].tensor)
            for tensor in _tensors(output):
                if tensor.requires_grad:
                    tensor.register_hook(self._backward_begins)  # type: ignore[no-untyped-call]  # torch's

    @_telling_peers
    def part_begins(self, module: nn.Module, inputs: Any) -> None:
        """A part of the model is about to be called."""
        if torch.is_grad_enabled():
            with self.run.statistics.busy():
                self.settle()

    @_telling_peers
    def gradient_arrives(self, parameter: Tensor) -> None:
        """A parameter has its gradient, and the model itself was not called."""
        if not self._awaiting_end:
            with self.run.statistics.busy():
                self._backward_begins(parameter)
                self._begin_uncalled()

    @_telling_peers
    def step_begins(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An optimizer is about to step."""
        with self.run.statistics.busy():
            check_scaler(self.run.scaler)
            closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer
            if closure is not None:
                raise UsageError(
                    "step(closure) is not supported: it runs backward inside the step; call backward, then "
                    "step()"
                )
            self._check_turn(optimizer)
            if self.run.scaler is not None and not self._called:
                self._hooks.watch_parts()
            if not self._opened:
                self.run.roster.check()
                self._check_exchanged()
                self._open()

    @_telling_peers
    def step_ends(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """It has stepped."""
        with self.run.statistics.busy():
            self._stepped.append(optimizer)
            if len(self._stepped) == len(self.run.optimizers):
                self._close_step()

    def _backward_begins(self, gradient: Tensor) -> None:
        if not self._awaiting_end:
            self._awaiting_end = True
            Variable._execution_engine.queue_callback(self._end_of_backward)

    def _begin(self) -> None:
        """A backward that reaches parameters; `autograd.grad` does not come here."""
        if not self._awaiting_end:
            self._backward_begins(torch.empty(0))
        if not self._called:
            self._begin_uncalled()
        self._remember_scale()
        self.joining.take_part(self.backward.is_due)

    def _begin_uncalled(self) -> None:
        """The training loop calls parts of the model, or methods other than its forward."""
        skipped = self._is_skipped()
        if self.course is not None:
            self.course.backward_begins(skipped=skipped)
        if skipped and (self.step.is_due() or self.step.lands()):
            raise UsageError(
                f"step {self.run.step} was skipped by the GradScaler, and its exchange is seen to be missing "
                "only now, in the next backward, since neither the model nor a part of it was called; train "
                "through the model itself: its forward may call what computes the loss"
            )
        self.settle()

    @_telling_peers
    def _backward_ended(self) -> None:
        with self.run.statistics.busy():
            self._awaiting_end = False
            if self.run.micro is not None and self.run.micro.arrived:
                self.run.micro.add()
            if not self.run.paused:
                if not self._pending and not self.backward.begun:
                    self._remember_scale()
                self._pending = True
            if self.backward.begun:
                self.backward.end()
            if not self.run.optimizers and not self.run.paused:
                self.run.roster.check()
                self._tick()

    def _check_turn(self, optimizer: Optimizer) -> None:
        """Refuse an optimizer that steps for the second time before each has done so."""
        if optimizer not in self._stepped:
            return
        left = [type(one).__name__ for one in self.run.optimizers if one not in self._stepped]
        raise UsageError(
            f"{type(optimizer).__name__} steps again in step {self.run.step}, before {', '.join(left)} has: "
            "a step ends when each optimizer that was given to attach has stepped once. Step all of them "
            "equally often, or attach an engine of its own to the part of the model that is trained less"
        )

    def _check_exchanged(self) -> None:
        """Refuse a step whose gradients a rule should have exchanged, and has not."""
        run = self.run
        if run.synchronised or not self.backward.is_due():
            return
        cause = (
            "optimizer.step() after backward under no_sync() only"
            if run.unsynchronised
            else f"optimizer.step() in step {run.step} without a backward that reached the model's parameters"
        )
        raise UsageError(
            f"{cause}: {run.algorithm.name} exchanges gradients as backward makes them, so those of this "
            "step were never exchanged. Run the last backward of each step outside no_sync(); where "
            "gradients are made otherwise (torch.func, by hand), use an algorithm that exchanges parameters, "
            "such as {name: local_sgd, steps: 1}"
        )

    def _open(self) -> None:
        self._opened = True
        self.joining.take_part(self.step.lands)
        self.step.apply_due()
        self.step.before()

    def _close_step(self) -> None:
        """Every optimizer has stepped, or a GradScaler has skipped those that have not."""
        self._pending = False
        if not self._opened:
            self.joining.take_part(self.step.lands)
            self.step.apply_due()
        self._opened, self._stepped = False, []
        self.joining.take_part(self.step.is_due)
        self.step.exchange()
        self.run.drift.check(self.step.made_equal)
        self._tick()

    def _tick(self) -> None:
        self._pending = self._called = False
        self.run.tick()
        if self.course is not None:
            self.course.step_ends()

    def _is_skipped(self) -> bool:
        """Whether a GradScaler has skipped this step, or a part of it, on this rank."""
        scaler, before = self.run.scaler, self.run.gradient_scale
        if not self._pending or scaler is None or before is None:
            return False
        return bool(scaler.get_scale() < before.item())

    def _remember_scale(self) -> None:
        scaler = self.run.scaler
        if scaler is not None and scaler.is_enabled():
            device = self.run.parameters[0].tensor.device
            scale = scaler.scale(torch.ones((), device=device))
            assert isinstance(scale, Tensor)
            self.run.gradient_scale = scale


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
