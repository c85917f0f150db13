"""A rank that has run out of data follows the others until none of them trains."""

from __future__ import annotations

from collections.abc import Callable

from relaxcomm.engine.algorithm_schedule import AlgorithmSchedule
from relaxcomm.step import replicas
from relaxcomm.step.step import Step


class Shadow:
    """Follows the others' clock, and takes part in what they exchange.

    Args:
        step: what runs now; a switch makes another.
        schedule: which switches.
    """

    def __init__(self, step: Callable[[], Step], schedule: AlgorithmSchedule) -> None:
        self._step, self._schedule = step, schedule

    def follow(self) -> None:
        """Take part in all that the others do, then take over the model of one that trained longest."""
        statistics, world = self._step().bound.world.statistics, self._step().bound.world
        trained = statistics.steps
        self._step().check_loaded()
        self._schedule.stop_timing()
        self._step().inputs.shadow()
        try:
            while self._follow_step():
                pass
        finally:
            self._step().inputs.train()
        step = self._step()
        if not step.bound.plan.keeps_step:  # switched to: nobody waits for a rank that has finished
            return
        step.bound.votes.drain()  # what is on its way to parameters that are given up
        step.parameters.drain()
        # Shadows have looked ahead: clocks differ.
        steps = [int(str(count)) for count in world.gather(trained, "the end of join()")]
        replica = step.bound.replica
        replicas.broadcast(replica.model, world.transport, replica.bucket_bytes, root=steps.index(max(steps)))
        step.rewind(statistics.steps - max(steps))  # shadows look ahead for the next exchange
        statistics.pause()

    def _follow_step(self) -> bool:
        """One step of the others' clock; False when nobody trains any more."""
        while self._schedule.is_due():
            if not self._step().inputs.agree(trains=False):
                return False
            self._schedule.go_on()
        step = self._step()
        if not step.bound.plan.keeps_step or not step.shadow():
            return False
        if not step.inputs.is_anything_ahead() and not self._schedule.is_ahead():
            return step.inputs.agree(trains=False)
        step.tick()
        return True
