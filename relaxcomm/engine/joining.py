"""Uneven data: a rank that has no more batches shadows the others until they have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from relaxcomm.engine import replicas
from relaxcomm.engine.run import Run
from relaxcomm.errors import UsageError
from relaxcomm.network.operations import Agree, Label

if TYPE_CHECKING:
    from relaxcomm.engine.backward import Backward
    from relaxcomm.engine.course import Course
    from relaxcomm.engine.step import Step


class Joining:
    """Before every exchange and every switch the ranks say whether they still train.

    Args:
        run: the run of an algorithm.
        backward, step: what exchanges in it.
    """

    def __init__(self, run: Run, backward: Backward, step: Step) -> None:
        self.run, self._backward, self._step = run, backward, step
        self.active = False
        self.shadowing = False

    def follow(self, before: Joining) -> None:
        """Go on where another algorithm was left."""
        self.active, self.shadowing = before.active, before.shadowing

    def check_left(self) -> None:
        """Raise UsageError inside join(), before what ranks that have run out of data would not know of."""
        if self.active:
            raise UsageError(
                "switch() inside join(): a rank that has run out of data could not follow; switch before or "
                "after join(), or name the switch in `phases`, which all ranks follow"
            )

    def take_part(self, is_due: Callable[[], bool]) -> None:
        """Say that this rank still trains, where an exchange is about to begin or a late result to land.

        Args:
            is_due: whether that is so; asked only inside join().
        """
        if not self.active or self.shadowing or not is_due():
            return
        if self.run.synchronised and self._backward.begun:
            raise UsageError(
                "a second synchronising backward in one step inside join(): shadows cannot foresee it; "
                "accumulate under engine.no_sync()"
            )
        self.agree(trains=True)

    def shadow_step(self) -> bool:
        """Take part in all that the others exchange in this step; False when nobody trains any more."""
        for is_due, follow in (
            (self._backward.is_due, self._backward.shadow),
            (self._step.lands, self._step.apply_due),
            (self._step.is_due, self._step.exchange),
        ):
            if is_due():
                if not self.agree(trains=False):
                    return False
                follow()
        return True

    def is_anything_ahead(self) -> bool:
        """Whether there will be something to take part in."""
        return bool(self._step.late) or any(
            rule.active[1] is None or rule.active[1] > self.run.step for rule in self.run.algorithm.rules
        )

    def give_up(self) -> None:
        """Let go of what is on its way to parameters that are given up."""
        self.run.votes.drain()
        self._step.drain()

    def agree(self, *, trains: bool) -> bool:
        """Whether any rank trains."""
        flag = torch.tensor([float(trains)])
        with self.run.statistics.waiting():
            received = self.run.transport.issue(Agree(flag, "max"), Label(self.run.step, "join")).wait()
        assert isinstance(received, Tensor)
        return bool(received.item() > 0)


class Shadow:
    """A rank that has no more batches follows the others' clock until none of them trains.

    Args:
        joining: what is joined now; a switch makes another.
        course: which switches.
    """

    def __init__(self, joining: Callable[[], Joining], course: Course) -> None:
        self._joining, self._course = joining, course

    def follow(self) -> None:
        """Take part in all that the others do, then take over the model of one that trained longest."""
        run = self._joining().run
        transport, trained = run.transport, run.statistics.steps
        self._course.stop_timing()
        self._joining().shadowing = True
        try:
            while self._follow_step():
                pass
        finally:
            self._joining().shadowing = False
        run = self._joining().run
        if not run.algorithm.keeps_step:  # switched to: nobody waits for a rank that has finished
            return
        self._joining().give_up()
        steps = [int(str(count)) for count in transport.gather_objects(trained)]
        replicas.broadcast(run.model, transport, run.bucket_bytes, root=steps.index(max(steps)))
        run.rewind(run.statistics.steps - max(steps))  # shadows look ahead for the next exchange
        run.statistics.pause()

    def _follow_step(self) -> bool:
        """One step of the others' clock; False when nobody trains any more."""
        while self._course.is_due():
            if not self._joining().agree(trains=False):
                return False
            self._course.go_on()
        joining = self._joining()
        if not joining.run.algorithm.keeps_step or not joining.shadow_step():
            return False
        if not joining.is_anything_ahead() and not self._course.is_ahead():
            return joining.agree(trains=False)
        joining.run.tick()
        return True
