"""What every callback of the training loop has in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from relaxcomm.engine.loop.listeners import StepOwner
from relaxcomm.errors import NonFiniteError, RankLostError, worded

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
