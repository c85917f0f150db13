"""Which algorithm a run goes on with: the configuration's phases, and what is chosen by the first steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from relaxcomm.composition.algorithm import Algorithm
from relaxcomm.config import Config, Phase
from relaxcomm.config.grammar import parse_algorithm
from relaxcomm.engine.attaching.binding import fitted
from relaxcomm.engine.loop.loop import Loop
from relaxcomm.engine.saved_state.state_schema import EngineState
from relaxcomm.engine.switching.first_steps import FirstSteps
from relaxcomm.engine.switching.switching import Residuals
from relaxcomm.errors import ConfigError, UsageError
from relaxcomm.roles.planner import Measured
from relaxcomm.roles.returned import chosen
from relaxcomm.step.bound import Bound
from relaxcomm.step.uneven_inputs import check_switches
from relaxcomm.system.telling import tell


class AlgorithmSchedule:
    """Switches where a step ends, when a phase is due or enough steps are measured.

    Without an optimizer the step's end is not seen, so the next forward switches.

    Args:
        loop: that follows the training loop.
        settings: of the run, whose phases begin one after the other.
        switch: goes on with an algorithm, and tells the schedule by `follow`.
    """

    def __init__(self, loop: Loop, settings: Config, switch: Callable[..., None]) -> None:
        self._loop, self._switch = loop, switch
        self._phases, self._algorithms = settings.phases, settings.algorithms
        self._num_begun = 0
        self._failed_after = -1  # steps, at whose end a switch was tried in vain
        self.follow()

    @property
    def _bound(self) -> Bound:
        """The algorithm that runs now."""
        return self._loop.step.bound

    def follow(self) -> None:
        """Begin anew with another algorithm; where nothing can follow it, steps cost nothing more."""
        self._first_steps = FirstSteps(self._bound)
        self._measured: Measured | None = None
        self.choice: str | None = None
        """What was chosen and why."""
        self.stay()

    def stay(self) -> None:
        """Follow the present algorithm, also after a switch that has failed on its way."""
        self._loop.follow(self if self.is_ahead() else None)

    def time_anew(self) -> None:
        """The same algorithm goes on among other ranks; what was timed was among the ones before."""
        self._first_steps = FirstSteps(self._bound)

    def export(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "phase": self._num_begun,
            "measured": None if self._measured is None else asdict(self._measured),
            "step_times": list(self._first_steps.step_times),
        }

    def resume(self, saved: EngineState) -> None:
        """Switch to what ran when that was saved, which was checked; it may be what runs now."""
        if repr(self._bound.algorithm) not in (saved.algorithm, repr(self._first_of(saved.phase))):
            self._begin(saved.phase, resumes=True)
        elif saved.phase != self._num_begun:
            self._num_begun = saved.phase
            self.follow()
        if saved.measured is not None and repr(self._bound.algorithm) != saved.algorithm:
            self._choose(saved.measured, resumes=True)
        self._measured = saved.measured
        self._first_steps.resume(saved.step_times)
        # With optimizers what is due there has failed, or it would have begun where that step ended.
        self._failed_after = saved.statistics.steps if self._bound.replica.optimizers else -1

    def begin_at(self, saved: EngineState) -> None:
        """Be where the ranks are that this one has joined."""
        self._num_begun, self._measured = saved.phase, saved.measured

    def algorithm_of(self, saved: EngineState) -> Algorithm:
        """The algorithm that ran when something was saved, if that was a run like this one.

        Raises: ConfigError for a phase, or measurements, that this run does not have.
        """
        if saved.phase > len(self._phases):
            raise ConfigError(
                f"the saved engine state is in phase {saved.phase}, and this run has {len(self._phases)}; "
                "give the configuration that it was saved with"
            )
        here = self._bound.algorithm
        has_switched = repr(here) != repr(self._planned(self._num_begun, self._measured))
        if has_switched and repr(here) == saved.algorithm:  # so had the training program that saved
            return here
        return self._planned(saved.phase, saved.measured)

    @property
    def to_come(self) -> tuple[Phase, ...]:
        """The phases that have not begun."""
        return self._phases[self._num_begun :]

    def check_join(self) -> None:
        """Raise UsageError for phases to come that ranks that have run out of data could not follow."""
        if self.is_ahead():
            check_switches(self._bound.algorithm, *(phase.algorithm for phase in self.to_come))

    def is_ahead(self) -> bool:
        """Whether a switch is still to come."""
        return self._num_begun < len(self._phases) or self._bound.algorithm.planner is not None

    def is_due(self, ahead: int = 0) -> bool:
        """Whether it is time for one, or will be in so many steps."""
        is_time = self._first_steps.are_over(ahead) or self._is_phase_due(ahead)
        return is_time and self._bound.world.statistics.steps + ahead != self._failed_after

    def go_on(self) -> None:
        """Make the one that is due; every rank calls this in the same step.

        Where it fails a loop may go on, and it is due again at the end of the next step.
        """
        try:
            if self._first_steps.are_over():
                self._choose(self._first_steps.measure())
            else:
                self._begin(self._num_begun + 1, self._phases[self._num_begun].residuals)
        except BaseException:
            self._failed_after = self._bound.world.statistics.steps
            raise

    def stop_timing(self) -> None:
        """This rank trains no more, but takes part in what the others do."""
        self._first_steps.stop()

    def step_ends(self) -> None:
        """A step was closed."""
        self._first_steps.step_ends()
        if self._bound.replica.optimizers:
            self._go_on_if_due()

    def forward_begins(self) -> None:
        """The model is about to be called."""
        if not self._bound.replica.optimizers and self._loop.is_between_steps:
            self._go_on_if_due()

    def backward_begins(self, *, skipped: bool) -> None:
        """A backward begins, and the model itself was not called before it.

        Args:
            skipped: whether it is seen only now that a GradScaler has skipped the step before.

        Raises: UsageError if the others switch, or have done so.
        """
        is_seen = self._bound.replica.optimizers and not skipped  # where the step ends
        if not is_seen and self.is_due(ahead=int(skipped)):
            raise UsageError(
                f"another algorithm is due after step {self._bound.clock.step}, but a backward has begun "
                "before it was seen where the step ends; pass the optimizers to attach, and train "
                "through the model itself: its forward may call what computes the loss"
            )

    def _go_on_if_due(self) -> None:
        while self.is_due():
            self._loop.step.inputs.take_part(self.is_due)
            self.go_on()

    def _is_phase_due(self, ahead: int) -> bool:
        steps = self._bound.world.statistics.steps + ahead
        return self._num_begun < len(self._phases) and steps >= self._phases[self._num_begun].after_steps

    def _first_of(self, num_begun: int) -> Algorithm:
        """The algorithm with which a run goes on when so many phases have begun, until one is chosen."""
        return fitted(self._bound.replica.parameters, self._algorithms[num_begun])

    def _planned(self, num_begun: int, measured: Measured | None) -> Algorithm:
        """The algorithm of such a moment, where the training program switches to none."""
        algorithm = self._first_of(num_begun)
        if measured is None or algorithm.planner is None:
            return algorithm
        choice, _ = chosen(algorithm.planner.choose(measured), algorithm.planner)
        return fitted(self._bound.replica.parameters, parse_algorithm(choice))

    def _begin(self, num_begun: int, residuals: Residuals = "carry", *, resumes: bool = False) -> None:
        """Be where a run is in which so many phases have begun."""
        before, self._num_begun = self._num_begun, num_begun
        algorithm = self._algorithms[num_begun]
        try:
            self._switch(algorithm, residuals, resumes=resumes)
        except BaseException:  # the phase is still to come
            self._num_begun = before
            self.stay()
            raise
        step = self._phases[num_begun - 1].after_steps if num_begun else 0
        self._tell(f"{algorithm.name} from step {step}")

    def _choose(self, measured: Measured, *, resumes: bool = False) -> None:
        """Go on with what the planner says; the same on all ranks."""
        before = self._bound.algorithm
        assert before.planner is not None, "nothing is measured without one"
        algorithm, reason = chosen(before.planner.choose(measured), before.planner)
        if self._loop.step.inputs.active:
            check_switches(parse_algorithm(algorithm))
        self._switch(algorithm, from_start=True, resumes=resumes)
        self._measured = measured
        self.choice = f"{before.name} chose {self._bound.algorithm!r}: {reason}"
        self._tell(self.choice)

    def _tell(self, line: str) -> None:
        if self._bound.world.process.rank == 0:
            tell(line)
