"""What all ranks do together between two steps, also where some are lost meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, cast

from relaxcomm.errors import CommunicationError, RankLostError, RejoinedError
from relaxcomm.step.world import World

T = TypeVar("T")


class Run(Protocol):
    """Whose ranks do something together."""

    @property
    def world(self) -> World:
        """The ranks now."""

    @property
    def is_elastic(self) -> bool:
        """Whether those that are left go on where others are lost."""

    def joins_again(self, error: RankLostError) -> bool:
        """Go on without lost ranks; whether the others had given up this one, which is a new one to them."""


class CommonEvents:
    """Has all ranks do something, and those that are left once more where others are lost meanwhile.

    All meet at the end: who has met them has ended it, and all others then have its result, too. So nobody
    does it once more alone.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._is_under_way = False
        self.ended = 0
        """How many are over."""

    def together(self, event: Callable[[], T]) -> T:
        """Do it, as a part of the one under way if there is one, which begins anew where ranks are lost.

        Raises: what it raises, after all have met; RejoinedError where this rank was lost to the others,
            who do something else by now.
        """
        if self._is_under_way or not self._run.is_elastic:
            return event()
        self._is_under_way = True
        try:
            return self._until_over(event)
        finally:
            self._is_under_way = False

    def _until_over(self, event: Callable[[], T]) -> T:
        ended = self.ended
        failed: Exception | None = None
        while True:
            try:
                result, failed = _tried(event)
                self._run.world.meet("the end of what all do together")
                self.ended += 1
            except RankLostError as error:
                if self._joins_again(error, failed):
                    steps = self._run.world.statistics.steps
                    raise RejoinedError(
                        "the others went on without this worker, which has joined them again after step "
                        f"{steps}; catch RejoinedError and go on with the next step"
                    ) from failed
            except CommunicationError as error:
                if failed is None:
                    raise
                raise failed from error  # the others do not know why this rank is not with them
            if self.ended > ended:  # or others have met all, this rank among them
                if failed is not None:
                    raise failed
                return cast("T", result)

    def _joins_again(self, error: RankLostError, failed: Exception | None) -> bool:
        try:
            return self._run.joins_again(error)
        except CommunicationError as lost:
            if failed is None:
                raise
            raise lost from failed  # this rank has failed before, alone


def _tried(event: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """What it returns, or raises: one rank may fail alone, where it writes a file, and all meet first."""
    try:
        return event(), None
    except CommunicationError:  # after which nobody meets
        raise
    except Exception as error:
        return None, error
