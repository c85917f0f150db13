"""Uneven data: a rank that has no more batches shadows the others until they have none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from relaxcomm.engine import replicas
from relaxcomm.engine.run import Run
from relaxcomm.errors import UsageError
from relaxcomm.operations import Agree, Label

if TYPE_CHECKING:
    from relaxcomm.engine.backward import Backward
    from relaxcomm.engine.step import Step


class Joining:
    """Before every exchange the ranks say whether they still train; a shadow follows their clock."""

    def __init__(self, run: Run, backward: Backward, step: Step) -> None:
        self.run, self._backward, self._step = run, backward, step
        self.active = False
        self.shadowing = False

    def take_part(self) -> None:
        """Say that this rank still trains, where an exchange is about to begin or a late result to land."""
        if not self.active or self.shadowing:
            return
        if self.run.synchronised and self._backward.begun:
            raise UsageError(
                "a second synchronising backward in one step inside join(): shadows cannot foresee it; "
                "accumulate under engine.no_sync()"
            )
        self._agree(trains=True)

    def shadow(self) -> None:
        """Take part in the others' exchanges until none of them trains, then take over their model."""
        trained = self.run.step
        self.shadowing = True
        try:
            while self._follow():
                pass
        finally:
            self.shadowing = False
        self.run.votes.drain()
        self._step.drain()  # on its way to parameters that are given up here
        steps = [int(str(count)) for count in self.run.transport.gather_objects(trained)]
        replicas.broadcast(
            self.run.model, self.run.transport, self.run.bucket_bytes, root=steps.index(max(steps))
        )
        self.run.rewind(max(steps))  # shadows look ahead for the next exchange
        self.run.statistics.pause()

    def _follow(self) -> bool:
        """One exchange of the others' clock; False when nobody trains any more."""
        for is_due, follow in (
            (self._backward.is_due, self._backward.shadow),
            (self._step.lands, self._step.apply_due),
            (self._step.is_due, self._step.exchange),
        ):
            if is_due():
                if not self._agree(trains=False):
                    return False
                follow()
        if not self._anything_ahead():
            return self._agree(trains=False)
        self.run.tick()
        return True

    def _anything_ahead(self) -> bool:
        return bool(self._step.late) or any(
            rule.active[1] is None or rule.active[1] > self.run.step for rule in self.run.algorithm.rules
        )

    def _agree(self, *, trains: bool) -> bool:
        flag = torch.tensor([float(trains)])
        with self.run.statistics.waiting():
            received = self.run.transport.issue(Agree(flag, "max"), Label(self.run.step, "join")).wait()
        assert isinstance(received, Tensor)
        return bool(received.item() > 0)
