"""Steps that exchange nothing more, since ranks were lost in them."""

from __future__ import annotations

from relaxcomm.engine.loop.end_of_backward import EndOfBackward
from relaxcomm.engine.loop.listeners import Survivors
from relaxcomm.errors import RankLostError
from relaxcomm.step.step import Step


class GivenUpSteps:
    """Knows whether this step is given up, and goes on among the others where no backward is under way.

    Args:
        survivors: who bring this rank to go on where others are lost.
        end_of_backward: of the one that may be under way.
    """

    def __init__(self, survivors: Survivors, end_of_backward: EndOfBackward) -> None:
        self._survivors, self._end_of_backward = survivors, end_of_backward
        self._lost: RankLostError | None = None  # in the backward under way
        self._resumes_at = self._caught_up_at = 0
        self._is_given_up = False  # the step of the clock
        self.is_behind = False
        """Whether others have made steps that this rank has yet to make."""

    @property
    def include_this(self) -> bool:
        """Whether this step exchanges nothing more."""
        return self._is_given_up or self._lost is not None

    def add(self, error: RankLostError) -> bool:
        """Exchange no more in this step; whether `go_on` is to be called at the end of a backward.

        Raises: the error if this rank cannot go on.
        """
        self._lost = error
        # Others may send it their model, and autograd still reads the one that the forward has seen.
        waits = self._survivors.can_go_on and self._end_of_backward.is_awaited
        if not waits:
            self.go_on()
        return waits

    def go_on(self) -> None:
        """Go on without ranks that were lost, if there are any."""
        if self._lost is not None:
            error, self._lost = self._lost, None
            self._survivors.go_on(error, in_step=True)

    def go_on_with(self, step: Step, resumes_at: int, caught_up_at: int) -> None:
        """Be among other ranks, who give up all steps before `resumes_at`.

        Args:
            step: what is done in one.
            resumes_at: the clock when exchanges go on.
            caught_up_at: the clock when this rank has come as far as the others.
        """
        self._lost, self._resumes_at = None, resumes_at
        self._caught_up_at = max(resumes_at, caught_up_at)
        self._compare(step)

    def close(self, step: Step) -> None:
        """Close the step if it is given up, and tell how far this rank has come if others were farther."""
        if self.include_this:
            step.tick()
        if self.is_behind:
            self._compare(step)
            self._survivors.catch_up(step.bound.clock.step)

    def catch_up(self) -> None:
        """Count as being as far as the others, for an algorithm whose clock begins anew."""
        if self.is_behind:
            self._is_given_up = self.is_behind = False
            self._survivors.catch_up(self._caught_up_at)

    def _compare(self, step: Step) -> None:
        clock = step.bound.clock.step
        self._is_given_up, self.is_behind = clock < self._resumes_at, clock < self._caught_up_at
