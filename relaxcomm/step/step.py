"""What happens in one step of the training loop, and in which order."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence

from relaxcomm.config import DriftGuard
from relaxcomm.errors import CompositionWarning
from relaxcomm.replica.user_gradients import zero_or_none
from relaxcomm.step import served
from relaxcomm.step.backward import Backward
from relaxcomm.step.bases import Bases
from relaxcomm.step.bound import Bound
from relaxcomm.step.drift import Drift
from relaxcomm.step.parameter_exchange import ParameterExchange
from relaxcomm.step.uneven_inputs import UnevenInputs


class Step:
    """The timeline of a step; its methods are called in the order in which they stand here.

    Args:
        bound: the algorithm on a model.
        guard: how replicas are compared now and then; None for never.
        debug: whether gradients are looked at for NaN where nothing is kept that it would spoil, too.
        report: called when something was exchanged.
    """

    def __init__(
        self, bound: Bound, guard: DriftGuard | None, report: Callable[[], None], *, debug: bool
    ) -> None:
        self.bound = bound
        self.backward = Backward(bound, debug=debug)
        self.parameters = ParameterExchange(bound)
        self.inputs = UnevenInputs(bound, self.backward, self.parameters)
        self._drift, self._bases = None if guard is None else Drift(bound, guard), Bases(bound)
        self._report = report
        self._exchanged = False
        self._ran: frozenset[int] = frozenset()  # rules on parameters, in this step

    @property
    def follows_gradients(self) -> bool:
        """Whether it has to be told of gradients as they arrive."""
        return self._needs_gradients or self.bound.algorithm.round_plan is not None

    @property
    def stands_alone(self) -> bool:
        """Whether it does nothing before the optimizers' step, so that they may step whenever they like."""
        return not (self._needs_gradients or self.parameters.acts_before)

    @property
    def _needs_gradients(self) -> bool:
        bound = self.bound
        return bool(bound.algorithm.at("backward") or bound.votes or bound.controllers.accumulation)

    def begin_backward(self) -> None:
        """The first gradient of a backward has come."""
        self.bound.flags.raise_if_bad(self.bound.clock.step)
        if self.backward.sends_late:
            self.check_loaded()  # before gradients of what was loaded are on their way, too
        self.inputs.check_first_backward()
        self.inputs.take_part(self.backward.meets)
        self.backward.begin()

    def ready(self, indices: Sequence[int]) -> None:
        """Parameters, named by their indices, have their gradients."""
        self.backward.ready(indices)

    def end_backward(self) -> None:
        """Every gradient is there; afterwards `.grad` is final."""
        self.backward.end()

    def before_step(self) -> None:
        """The optimizers are about to step."""
        self.bound.votes.leave_out(self.bound.clock.step)
        self.apply_due()
        self.parameters.before_step()

    def apply_due(self) -> None:
        """Apply late results that are due, also where a GradScaler has skipped the step."""
        self.bound.flags.raise_if_bad(self.bound.clock.step)
        self.check_loaded()
        self.inputs.take_part(self.parameters.late.lands)
        self._exchanged = self.parameters.late.apply_due() or self._exchanged

    def check_loaded(self) -> None:
        """Have what is on its way move no weights that were loaded since the last step.

        Raises: UsageError for weights that would move a base.
        """
        algorithm, step = self.bound.algorithm, self.bound.clock.step
        if changed := self.bound.replica.loaded.check(algorithm, step):
            self.backward.overtake()
            self.parameters.late.overtake()
            if not algorithm.keeps_step:
                warnings.warn(
                    f"load_state_dict() has changed {changed[0]} before step {step}, and the workers of "
                    f"{algorithm.name} have no common step: what others send before they load, too, is mixed "
                    "into it. Close the engine, load on all ranks, and attach again",
                    CompositionWarning,
                    stacklevel=2,
                )

    def after_step(self) -> None:
        """The optimizers have stepped, or a GradScaler has skipped it."""
        self.bound.world.statistics.trained()
        fired = self.parameters.fired()
        if fired:
            self.inputs.take_part(lambda: True)
            self.exchange_parameters(fired)
        if self._drift is not None and self.inputs.all_train and self._drift.is_due():
            self._drift.check(self.bound.plan.equal_after(fired))
        self.tick()

    def has_work_after(self) -> bool:
        """Whether anything is exchanged or applied after the optimizers' step."""
        return self.parameters.late.lands() or bool(self.parameters.fired())

    def exchange_parameters(self, fired: frozenset[int]) -> None:
        """Run the step rules that fire."""
        self._exchanged = self.parameters.run(fired) or self._exchanged
        self._ran |= fired

    def tick(self) -> None:
        """Close the step: the clock goes on."""
        bound = self.bound
        exchanged = self._exchanged or self.backward.exchanged
        if bound.votes:
            bound.votes.close(bound.clock.step)
        bound.controllers.decide(bound.context)
        bound.controllers.close()
        device_seconds = bound.world.transport.device_seconds()
        bound.world.statistics.tick(exchanged, bound.uncompressed_bytes, *device_seconds)
        bound.clock.step += 1
        bound.replica.loaded.forget()
        bound.replica.hidden_gradients.put_back()
        self._bases.follow(self._ran)
        self.backward.tick()
        self._exchanged, self._ran = False, frozenset()
        if exchanged:
            self._tell()

    def meet(self, *, evaluates: bool = False) -> None:
        """Have all pushes in: with a server, every rank calls it before it waits for all others.

        Else it would wait for one that waits at the server for its next push. What is on its way is answered,
        and not applied.

        Args:
            evaluates: whether the cost is no training's.
        """
        served.meet(self.bound, self.parameters.late.asked(), evaluates=evaluates)

    def abort(self) -> None:
        """Forget the step that an error has ended."""
        self.bound.flags.forget()
        self.bound.replica.hidden_gradients.put_back()
        self.bound.votes.abort()
        self.bound.controllers.accumulation.close()
        self.backward.abort()
        self.bound.world.statistics.in_flight.forget()
        self._exchanged, self._ran = False, frozenset()

    def tell(self, event: str, facts: Mapping[str, float]) -> None:
        """Tell payloads of something that has happened, at which they may read or move parameters."""
        if self.parameters.hears(event):
            self.check_loaded()
            self.parameters.tell(event, facts)
            self.bound.replica.loaded.forget()

    def exchange_at(self, event: str) -> None:
        """Run the rules that wait for something that has happened."""
        if not (fired := self.parameters.waiting_for(event)):
            return  # weights may be there to be evaluated, which are put back
        self.bound.flags.raise_if_bad()  # which others may have read in a step, of which they have made more
        self.check_loaded()
        if self.parameters.run(fired):
            self.bound.world.statistics.synchronised()
            self._tell()
        self.bound.replica.loaded.forget()

    def shadow(self) -> bool:
        """Take part in all that the others exchange in this step; False when nobody trains any more."""
        self.bound.flags.raise_if_bad(self.bound.clock.step)
        for is_due, follow in (
            (self.backward.meets, self._shadow_backward),
            (self.parameters.late.lands, self.parameters.late.apply_due),
        ):
            if is_due():
                if not self.inputs.agree(trains=False):
                    return False
                follow()
        fired = self.parameters.fired()
        if fired and not self.inputs.agree(trains=False):
            return False
        self.exchange_parameters(fired)
        return True

    def give_up(self) -> None:
        """Nothing that is on its way will come: forget it, and what was not kept yet."""
        self.backward.release()
        self.bound.state.give_up()
        self.bound.votes.give_up()
        self.bound.world.statistics.in_flight.forget()

    def release(self) -> None:
        """Let go of all memory: the engine may be kept for what it has counted."""
        self.backward.release(ends=True)
        self.parameters.late.forget()
        self.bound.state.release()

    def discard_gradients(self) -> None:
        """Some ranks may have the exchanged gradients of a step that is given up, and others not."""
        replica = self.bound.replica
        if not self.bound.algorithm.at("backward"):
            return
        self._clear_gradients()
        replica.hidden_gradients.hide()  # zeros would let a momentum move weights
        if replica.scaler is not None:
            replica.spoil_gradients()

    def rewind(self, steps: int) -> None:
        """Set the clock back by steps in which nothing was trained or exchanged."""
        self.bound.world.statistics.rewind(steps, self.bound.uncompressed_bytes)
        self.bound.clock.step -= steps

    def _shadow_backward(self) -> None:
        """Take part in the others' backward with zero gradients."""
        self._clear_gradients()
        self.backward.begin()
        self.backward.end(abstains=True)
        self._clear_gradients()

    def _clear_gradients(self) -> None:
        """Make `.grad` None, but zeros where it is a tensor of the training loop's own."""
        for bucket in self.backward.buckets:
            bucket.buffer.hide()
        for item in self.bound.replica.parameters:
            zero_or_none(item)

    def _tell(self) -> None:
        self.bound.norms.residual(self.bound.state.slots.values())
        self._report()
