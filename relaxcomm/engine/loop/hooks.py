"""The only room that knows torch's hooks: it tells of what the training loop does."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Lock
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from relaxcomm.engine.loop.end_of_backward import EndOfBackward
from relaxcomm.engine.loop.gradient_hooks import GradientHooks, hang
from relaxcomm.engine.loop.listeners import Follower
from relaxcomm.engine.loop.output_hooks import OutputHooks
from relaxcomm.replica.hybrid_sharding import HybridSharding
from relaxcomm.replica.nested_steps import NestedSteps
from relaxcomm.replica.replica import Replica
from relaxcomm.system.compiler import uncompiled
from relaxcomm.system.weak_methods import weakly


class Hooks:
    """The hooks on a model and its optimizers, which stay while the algorithms behind them change.

    A switch may happen in one of them: there torch allows none on modules to be added or removed.

    Args:
        replica: whose model, gradients and optimizers are followed, and which notes what is loaded into it.
    """

    def __init__(self, replica: Replica) -> None:
        self._model, self._parameters = replica.model, replica.parameters
        self._follower: Follower | None = None
        self._tells_of_model = True
        self._handles: list[RemovableHandle] = []
        self._of_parts: list[RemovableHandle] = []
        self.gradients = GradientHooks((), self._gradients_arrive)
        """The hooks on the gradients that the follower wants to be told of."""
        self._hybrid = HybridSharding(replica.model)
        self.output = OutputHooks(self._backward_begins)
        """The hooks on what the model returns."""
        self.end_of_backward = EndOfBackward(
            self._backward_ends, is_sharded=any(item.sharded is not None for item in replica.parameters)
        )
        """The end of the backward under way, told where the follower awaits it."""
        self._load_begins = replica.loaded.note
        self._nested = {optimizer: NestedSteps(optimizer) for optimizer in replica.optimizers}

    def hang(self) -> None:
        """Register all, and have PyTorch leave to them what it would exchange itself."""
        self._hybrid.take_over()
        add = self._handles.append
        add(self._model.register_forward_pre_hook(Hook(self._forward_begins), prepend=True))
        add(self._model.register_forward_hook(Hook(self._forward_ends)))
        loads = Hook(self._any_loads)
        for module in self._model.modules():
            # torch leaves this method without types
            add(module.register_load_state_dict_pre_hook(loads))  # type: ignore[no-untyped-call]
        for optimizer in self._nested:
            add(optimizer.register_step_pre_hook(Hook(self._step_begins)))
            add(optimizer.register_step_post_hook(Hook(self._step_ends)))
        with _lock:
            _remove(_left)
        others = register_optimizer_step_post_hook(Hook(weakly(self._any_steps)))  # torch keeps it for ever
        weakref.finalize(self, _left.append, others)
        add(others)

    @property
    def are_hung(self) -> bool:
        """Whether the training loop is followed."""
        return bool(self._handles)

    def follow(self, follower: Follower | None, *, gradients: bool) -> None:
        """Tell somebody from now on, or nobody.

        Args:
            follower: whom.
            gradients: whether of the gradients, too.
        """
        self._follower = follower
        self.gradients.remove()
        self.gradients = GradientHooks(self._parameters if gradients else (), self._gradients_arrive)

    def watch_parts(self) -> None:
        """Follow the model's parts and gradients, too: the training loop may not call the model itself."""
        if self._of_parts:
            return
        parts = [module for module in self._model.modules() if module is not self._model]
        for part in parts:
            self._of_parts.append(part.register_forward_pre_hook(Hook(self._part_begins), prepend=True))
        for item in self._parameters:
            self._of_parts.append(hang(item.parameter, Hook(weakly(self._part_gradient_arrives))))

    def unwatch_parts(self) -> None:
        """Follow them no more: the model is called."""
        _remove(self._of_parts)

    def remove(self) -> None:
        """Remove all, as before attach."""
        self._hybrid.give_back()
        self.follow(None, gradients=False)
        _remove(self._handles)
        _remove(self._of_parts)
        self.output.remove()

    @contextmanager
    def steps_alone(self) -> Iterator[None]:
        """Tell of optimizers' steps alone inside: what the model does there belongs to no step."""
        before, self._tells_of_model = self._tells_of_model, False
        try:
            yield
        finally:
            self._tells_of_model = before
            self.gradients.tell_each()  # what was collected belongs to nothing

    @property
    def _follower_of_model(self) -> Follower | None:
        return self._follower if self._tells_of_model else None

    def _forward_begins(self, module: nn.Module, inputs: Any) -> None:
        if (follower := self._follower_of_model) is not None:
            follower.forward_begins(module)

    def _forward_ends(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if (follower := self._follower_of_model) is not None:
            follower.forward_ends(module, output)

    def _part_begins(self, module: nn.Module, inputs: Any) -> None:
        if (follower := self._follower_of_model) is not None:
            follower.part_begins()

    def _part_gradient_arrives(self, parameter: Tensor) -> None:
        if (follower := self._follower_of_model) is not None:
            follower.part_gradient_arrives()

    def _gradients_arrive(self, indices: list[int]) -> None:
        if (follower := self._follower_of_model) is not None:
            follower.gradients_arrive(indices)

    def _backward_begins(self) -> None:
        if (follower := self._follower_of_model) is not None:
            follower.backward_begins()

    def _backward_ends(self) -> None:
        if (follower := self._follower_of_model) is not None:
            follower.backward_ends()

    def _step_begins(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._follower is not None and not self._nested[optimizer].is_inside():
            closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer
            self._follower.step_begins(optimizer, closure)

    def _step_ends(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._follower is not None and not self._nested[optimizer].is_inside():
            self._follower.step_ends(optimizer)

    def _any_loads(self, *args: Any) -> None:
        self._load_begins()

    def _any_steps(self, optimizer: Optimizer, *args: Any) -> None:
        if self._follower is not None and optimizer not in self._nested:
            self._follower.turns.other_steps(optimizer)


class Hook:
    """A callback that copies and pickles of a model do not take with them: there it does nothing."""

    def __init__(self, callback: Callable[..., None]) -> None:
        self._callback = uncompiled(callback)

    def __call__(self, *args: Any) -> None:
        self._callback(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        # Takes any arguments, gives None, and can be loaded where relaxcomm is not installed.
        return getattr, (nullcontext(), "__exit__")


_lock = Lock()
_left: list[RemovableHandle] = []
"""On all optimizers, of what was collected: any thread may do that, also while torch calls its hooks."""


def _remove(handles: list[RemovableHandle]) -> None:
    while handles:
        handles.pop().remove()
