"""The mean model in the place of a replica, which nothing changes or saves meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from relaxcomm.errors import UsageError

SAVES_MEAN = "; torch.save(model.state_dict(), …) saves the mean model"
"""What may be wanted instead of what saves the run."""


class HeldMean:
    """Knows whether a replica's memory holds the mean now, and its own values come back later.

    What changes the run would be undone in part then, and what saves it would take the mean for the replica.
    """

    def __init__(self) -> None:
        self._held: list[Callable[[], AbstractContextManager[None]]] = []

    @contextmanager
    def held(self, left: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        """The mean is there inside, and maybe after it.

        Args:
            left: what was there before is there inside, and what becomes of it is there after `held`.
        """
        self._held.append(left)
        try:
            yield
        finally:
            self._held.pop()

    @contextmanager
    def left(self) -> Iterator[None]:
        """This rank's own is there inside, where ranks go on among others, who may not hold a mean."""
        with ExitStack() as stack:
            for left in reversed(self._held):
                stack.enter_context(left())
            yield

    def check_left(self, called: str, instead: str = "") -> None:
        """Raise UsageError while the mean is held, which it is on every rank.

        Args:
            called: what may not be.
            instead: what else to do.
        """
        if self._held:
            raise UsageError(
                f"{called} inside `with engine.averaged():`, which holds the mean model, and at whose end "
                f"this rank's own comes back; leave averaged() first{instead} (Lightning holds the mean "
                "until its callbacks' on_validation_end is over: call it in on_train_batch_start)"
            )
