"""Who is told of what the training loop does."""

from __future__ import annotations

from typing import Protocol

from relaxcomm.errors import RankLostError


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
