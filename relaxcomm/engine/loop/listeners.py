"""Who is told of what the training loop does."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from relaxcomm.engine.loop.optimizer_turns import OptimizerTurns
from relaxcomm.errors import RankLostError
from relaxcomm.step.step import Step


class Follower(Protocol):
    """Who is told of what the training loop does."""

    turns: OptimizerTurns
    """Told of the steps of optimizers that were not given to attach."""

    def forward_begins(self, module: nn.Module) -> None:
        """The model is about to be called."""

    def forward_ends(self, module: nn.Module, output: Any) -> None:
        """The model has returned something."""

    def part_begins(self) -> None:
        """A part of it is about to be called; told only after `watch_parts`."""

    def part_gradient_arrives(self) -> None:
        """A parameter has its gradient; told only after `watch_parts`."""

    def backward_begins(self) -> None:
        """A backward has reached what `Hooks.output` watches."""

    def gradients_arrive(self, indices: list[int]) -> None:
        """Trained parameters have their gradients; how many are told of at a time, `GradientHooks` says."""

    def backward_ends(self) -> None:
        """The outermost backward has ended; told where `end_of_backward` is awaited."""

    def step_begins(self, optimizer: Optimizer, closure: object) -> None:
        """An optimizer is about to step."""

    def step_ends(self, optimizer: Optimizer) -> None:
        """The optimizer has stepped."""


class StepOwner(Protocol):
    """Who makes steps of what the training loop does: its methods are callbacks."""

    step: Step
    turns: OptimizerTurns

    def close_step(self) -> None:
        """Every optimizer has stepped, or was skipped."""

    def give_up_step(self, error: RankLostError) -> None:
        """Go on without ranks that are lost; raises the error where that cannot be."""

    def abort_step(self) -> None:
        """Forget what an error has left of a step."""


class Between(Protocol):
    """Who is told where a step ends, while another algorithm may follow."""

    def step_ends(self) -> None:
        """A step was closed."""

    def forward_begins(self) -> None:
        """The model is about to be called."""

    def backward_begins(self, *, skipped: bool) -> None:
        """A backward begins, and the model itself was not called before it."""


class Survivors(Protocol):
    """Who brings those who are left to go on when others are lost."""

    @property
    def can_go_on(self) -> bool:
        """Whether this rank goes on where others are lost."""

    def go_on(self, error: RankLostError, *, in_step: bool) -> object:
        """Have another `Loop.step` afterwards, among those who are left; else raise the error.

        Args:
            error: what became of the others.
            in_step: whether the loop is in a step, which is given up.
        """

    def catch_up(self, step: int) -> None:
        """This rank, which was behind others when it went on with them, has come to a step of the clock."""

    def step_ends(self) -> None:
        """A step was closed, and another may have other ranks."""
