"""What every callback of the training loop has in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar, cast

from relaxcomm.errors import NonFiniteError, RankLostError, worded
from relaxcomm.step.step import Step


class StepOwner(Protocol):
    """Whose methods are callbacks: it has a step, and can give it up or leave it."""

    step: Step

    def give_up_step(self, error: RankLostError) -> None:
        """Go on without ranks that are lost; raises the error where that cannot be."""

    def abort_step(self) -> None:
        """Forget what an error has left of a step."""


Callback = TypeVar("Callback", bound=Callable[..., None])


def callback(method: Callback) -> Callback:
    """Time a callback, and tell waiting peers when it fails here."""

    @wraps(method)
    def told(loop: StepOwner, *args: Any) -> None:
        try:
            with loop.step.bound.world.statistics.busy:
                try:
                    method(loop, *args)
                except RankLostError as error:
                    loop.give_up_step(error)
        except BaseException as error:
            if isinstance(error, NonFiniteError) and error.on_all_ranks:
                loop.abort_step()  # nobody waits for this rank, and all may go on
            else:
                loop.step.bound.world.transport.announce(f"failed: {worded(error)}")
            raise

    return cast("Callback", told)
