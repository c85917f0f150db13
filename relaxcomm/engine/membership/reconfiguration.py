"""A run goes on among other ranks: without those that are lost, and with those that join."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from relaxcomm.config import Config
from relaxcomm.engine.loaders.loading import Loaders
from relaxcomm.engine.membership import bucket_parts, next_generation, survival
from relaxcomm.engine.membership.admission import Newcomers
from relaxcomm.engine.membership.common_events import CommonEvents
from relaxcomm.engine.membership.elastic import Elastic, forget_locals
from relaxcomm.engine.membership.next_generation import Resumed, Transition
from relaxcomm.engine.membership.standings import Loaded, Standing
from relaxcomm.engine.reporting.metering import Metering
from relaxcomm.engine.saved_state import step_state
from relaxcomm.engine.switching.algorithm_schedule import AlgorithmSchedule
from relaxcomm.errors import CommunicationError, RankLostError
from relaxcomm.network.generations import GivenUpError
from relaxcomm.network.rendezvous import Rendezvous
from relaxcomm.step.bound import Bound
from relaxcomm.step.step import Step
from relaxcomm.step.world import World
from relaxcomm.system.telling import tell


class Run(Protocol):
    """What goes on among other ranks."""

    settings: Config
    loaders: Loaders
    common_events: CommonEvents
    metering: Metering
    schedule: AlgorithmSchedule

    @property
    def step(self) -> Step:
        """What is done in a step now."""

    def make_step(self, bound: Bound) -> Step:
        """What is done in a step of an algorithm."""

    def go_on_with(self, resumed: Resumed) -> None:
        """Follow the training loop among the ranks now."""


class Reconfiguration:
    """Brings a run from one generation of ranks to the next.

    Args:
        elastic: makes the world of each generation.
        run: that goes on.
    """

    def __init__(self, elastic: Elastic, run: Run) -> None:
        self.elastic, self._run = elastic, run
        self._look_for_newcomers(run.step.bound.world)

    def synchronised(self) -> None:
        """Something was exchanged."""
        self._has_synchronised = True

    def go_on(self, error: RankLostError, *, in_step: bool, in_round: bool) -> bool:
        """Go on without ranks that are lost; see `Session.go_on`."""
        forget_locals(error)
        return self._change(None, in_step=in_step, in_round=in_round)

    def admit(self) -> None:
        """Admit workers that ask, where something was exchanged."""
        if not self._has_synchronised:
            return
        self._has_synchronised = False
        step = self._run.step
        if step.inputs.active or not step.bound.algorithm.is_collective:  # they are nowhere together
            return
        newest = self._newcomers.synchronised()
        if newest < 0 or not self._newcomers.fit(newest, self._run.settings):
            return
        try:
            late = step_state.export_late(step)
        except RankLostError as error:  # those who ask are admitted by those who are left
            forget_locals(error)
            late = None
        self._change(late, in_step=False, newest=newest)

    def join(self, fresh: Bound, world: World, *, in_step: bool) -> None:
        """Go on as a rank that was not there before.

        Args:
            fresh: the algorithm on this rank's model.
            world: the ranks now.
            in_step: whether the training loop is in a step, which is given up.
        """
        run = self._run
        algorithm_of = run.schedule.algorithm_of
        resumed, saved = next_generation.join(
            fresh, world, run.make_step, algorithm_of, in_step=in_step, target=run.metering.target
        )
        run.schedule.begin_at(saved)
        bound = resumed.step.bound
        bound.replica.loaded.follow(bound.algorithm, is_elastic=True)
        self._go_on_with(resumed)

    def _change(
        self, late: Mapping[str, Any] | None, *, in_step: bool, in_round: bool = False, newest: int = -1
    ) -> bool:
        """Go on among other ranks.

        Args:
            late: results that were on their way; None where they are lost.
            in_step: whether the training loop is in a step.
            in_round: whether an exchange that an event has begun is not over.
            newest: newcomers up to this one are admitted.

        Returns: whether others had come farther, and this rank has what their exchange brought.
        """
        run, elastic, before = self._run, self.elastic, self._run.step
        world, generation = before.bound.world, elastic.generation
        loaders = run.loaders.export()
        before.give_up()
        if late is None:
            elastic.give_up(world)
        while True:
            try:
                following = elastic.next_world(world, newest, generation)
            except GivenUpError as error:
                self._join_again(error, before.bound, world, in_step=in_step)
                return True
            run.settings.check_world_size(following.size)
            if late is not None:
                world.transport.close()  # the others have left it, too
            standing = self._standing(
                in_step=in_step, in_round=in_round, is_whole=late is not None, loaders=loaders
            )
            transition = Transition(
                before=before,
                world=following,
                standing=standing,
                left=generation,
                now=elastic.generation,
                make_step=run.make_step,
                schedule=run.schedule.export(),
                late=late,
            )
            try:
                resumed = next_generation.stay(transition)
                break
            except RankLostError as error:  # one more is lost
                forget_locals(error)
                world, late = following, None
                elastic.give_up(world)
        self._go_on_with(resumed)
        bound = resumed.step.bound
        if bound.world.rank == 0:  # the clock is that of the algorithm, which may have begun later
            step = bound.world.statistics.steps + resumed.resumes_at - bound.clock.step
            elastic.say(step, in_order=late is not None)
        return resumed.is_behind

    def _standing(self, *, in_step: bool, in_round: bool, is_whole: bool, loaders: Loaded) -> Standing:
        """Where this rank stands, see `Standing`; `in_round` as `Bound.progress` has it.

        What it shares may have come from another rank in a change that was broken off.
        """
        run, bound = self._run, self._run.step.bound
        next_step = bound.clock.step + in_step
        return Standing(
            next_step=next_step,
            progress=bound.progress(next_step, in_round=in_round),
            events=run.common_events.ended,
            shared=survival.shared_digest(bound),
            is_whole=is_whole,
            loaders=loaders,
            read_until=run.loaders.read_until(next_step),
            rests=bucket_parts.rests(bound),
            algorithm=repr(bound.algorithm),
            target=run.metering.target,
            evaluated=() if in_step else bound.replica.loaded.others(),
            are_final=bound.replica.loaded.are_final,
            ends_as_loaded=bound.replica.loaded.ends_as_loaded,
        )

    def _join_again(self, error: GivenUpError, before: Bound, world: World, *, in_step: bool) -> None:
        """Ask those who have gone on without this rank to admit it."""
        if not before.algorithm.is_collective:  # they admit nobody
            raise CommunicationError(
                f"{error}; {before.algorithm.name} admits nobody, so this worker ends"
            ) from None
        tell(f"{error}; it asks to join them")

        def meet(rendezvous: Rendezvous) -> None:
            following = self.elastic.at(world, rendezvous)
            try:
                self.join(before, following, in_step=in_step)
            except RankLostError:
                self.elastic.give_up(following)
                raise

        self.elastic.join(meet)

    def _go_on_with(self, resumed: Resumed) -> None:
        self._run.go_on_with(resumed)
        self._look_for_newcomers(resumed.step.bound.world)

    def _look_for_newcomers(self, world: World) -> None:
        self._newcomers, self._has_synchronised = Newcomers(self.elastic.generations, world), False
