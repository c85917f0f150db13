"""Which algorithm a run goes on with: the configuration's phases, and what is chosen by the first steps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from relaxcomm.config import Phase
from relaxcomm.engine.choosing import FirstSteps
from relaxcomm.engine.switching import is_between_steps
from relaxcomm.engine.window import Window, uncompiled
from relaxcomm.protocol import Measured


class Course:
    """Switches before a forward, where a phase is due or enough steps are measured.

    Args:
        window: of the first algorithm.
        phases: in the order in which they begin.
        switch: goes on with an algorithm, and tells the course by `follow`.
    """

    def __init__(self, window: Window, phases: tuple[Phase, ...], switch: Callable[..., None]) -> None:
        self._phases, self._switch = phases, switch
        self._num_begun = 0
        self._handle: RemovableHandle | None = None
        self.follow(window)

    def follow(self, window: Window) -> None:
        """Begin anew with another algorithm; where nothing can follow it, forwards cost nothing more."""
        self.unhook()
        self._window = window
        self._first_steps = FirstSteps(window.run)
        self._measured: Measured | None = None
        self.choice: str | None = None
        """What was chosen and why."""
        if self.is_ahead():
            begins = uncompiled(self._forward_begins)
            self._handle = window.run.model.register_forward_pre_hook(begins, prepend=True)

    def unhook(self) -> None:
        """Switch no more."""
        if self._handle is not None:
            self._handle.remove()

    def export(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "phase": self._num_begun,
            "measured": None if self._measured is None else asdict(self._measured),
            "step_times": list(self._first_steps.step_times),
        }

    def resume(self, saved: Mapping[str, Any]) -> None:
        """Switch to what ran when that was saved."""
        num_begun, measured = saved.get("phase", 0), saved.get("measured")
        if num_begun != self._num_begun and 0 < num_begun <= len(self._phases):
            self._begin(num_begun)
        if measured is not None and self._window.run.algorithm.chooser is not None:
            self._choose(Measured(**measured))
        self._first_steps.resume(saved.get("step_times", ()))

    def is_ahead(self) -> bool:
        """Whether a switch is still to come."""
        return self._num_begun < len(self._phases) or self._window.run.algorithm.chooser is not None

    def is_due(self) -> bool:
        """Whether it is time for one."""
        return self._first_steps.are_over() or self._is_phase_due()

    def go_on(self) -> None:
        """Make the one that is due; every rank calls this in the same step."""
        if self._first_steps.are_over():
            self._choose(self._first_steps.measure())
        else:
            self._begin(self._num_begun + 1)

    def stop_timing(self) -> None:
        """This rank trains no more, but takes part in what the others do."""
        self._first_steps.stop()

    def _forward_begins(self, module: object, inputs: object) -> None:
        if not torch.is_grad_enabled() or not is_between_steps(self._window):
            return
        self._first_steps.forward_begins()
        while self.is_due():
            self._window.joining.take_part(self.is_due)
            self.go_on()

    def _is_phase_due(self) -> bool:
        steps = self._window.run.statistics.steps
        return self._num_begun < len(self._phases) and steps >= self._phases[self._num_begun].after_steps

    def _begin(self, num_begun: int) -> None:
        """Be where a run is in which so many phases have begun."""
        self._num_begun = num_begun
        phase = self._phases[num_begun - 1]
        self._switch(phase.algorithm, phase.residuals)

    def _choose(self, measured: Measured) -> None:
        """Go on with what the chooser says; the same on all ranks."""
        before = self._window.run.algorithm
        assert before.chooser is not None, "nothing is measured without one"
        algorithm, reason = before.chooser.choose(measured)
        self._switch(algorithm, from_start=True)
        run = self._window.run
        self._measured, self.choice = measured, f"{before.name} chose {run.algorithm!r}: {reason}"
        if run.transport.membership.rank == 0:
            print(f"relaxcomm: {self.choice}", file=sys.stderr, flush=True)
