"""An attached run: what is done in a step now, who follows the training loop, and who shows it."""

from __future__ import annotations

from collections.abc import Mapping

from relaxcomm.config import Config
from relaxcomm.engine.attaching import attached_models
from relaxcomm.engine.loaders.loading import Loaders
from relaxcomm.engine.loop.hooks import Hooks
from relaxcomm.engine.loop.loop import Loop
from relaxcomm.engine.membership.common_events import CommonEvents
from relaxcomm.engine.membership.elastic import Elastic
from relaxcomm.engine.membership.next_generation import Resumed
from relaxcomm.engine.membership.reconfiguration import Reconfiguration
from relaxcomm.engine.reporting.metering import Metering
from relaxcomm.engine.reporting.unclosed import Unclosed
from relaxcomm.engine.switching import switching
from relaxcomm.engine.switching.algorithm_schedule import AlgorithmSchedule
from relaxcomm.errors import RankLostError
from relaxcomm.network.generations import Generation
from relaxcomm.step.bound import Bound
from relaxcomm.step.step import Step
from relaxcomm.step.world import World
from relaxcomm.tensors import buffer_pool


class Session:
    """Holds the parts of a run from attach to close; a switch replaces the step, and nothing else.

    Args:
        bound: the first algorithm on the model.
        settings: of the run.
        metering: shows it.
        elastic: brings those who are left to go on when others are lost; None to end then.
    """

    def __init__(self, bound: Bound, settings: Config, metering: Metering, elastic: Elastic | None) -> None:
        self._ranks: Reconfiguration | None = None
        self.settings, self.metering = settings, metering
        self.replica = replica = bound.replica
        replica.loaded.follow(bound.algorithm, is_elastic=elastic is not None)
        self.hooks = Hooks(replica)
        self.loop = Loop(self.hooks, self.make_step(bound), self)
        self.loaders = Loaders(self.event, lambda: self.bound)
        self.common_events = CommonEvents(self)
        try:
            self.hooks.hang()
            if self.replica.scaler is not None:
                self.hooks.watch_parts()  # until the model is called: a step that is skipped must be seen
            self.schedule = AlgorithmSchedule(self.loop, settings, self.switch)
        except BaseException:
            self.detach()
            raise
        if elastic is not None:
            self._ranks = Reconfiguration(elastic, self)
        attached_models.add(self.replica.model)
        self._unclosed = Unclosed(self.metering, self.hooks, lambda: self.bound)

    @property
    def step(self) -> Step:
        """What is done in a step now."""
        return self.loop.step

    @property
    def world(self) -> World:
        """The ranks now."""
        return self.bound.world

    @property
    def generation(self) -> Generation:
        """Who these are."""
        if self._ranks is None:
            return Generation(0, tuple(range(self.world.size)))
        return self._ranks.elastic.generation

    @property
    def _worker(self) -> int:
        """The number of this rank, which another one never has."""
        return self.generation.workers[self.world.rank]

    @property
    def bound(self) -> Bound:
        """The algorithm that runs now, on the model."""
        return self.step.bound

    def switch(
        self,
        algorithm: object,
        residuals: switching.Residuals = "carry",
        *,
        from_start: bool = False,
        resumes: bool = False,
    ) -> None:
        """Go on with another algorithm.

        Args:
            algorithm: as YAML has it, or made in Python.
            residuals: whether compressors' are carried over.
            from_start: go on as if it had run all the time, where that can be.
            resumes: its state comes next, and model and optimizers, which stay as they are, belong to that.
        """
        with self.replica.loaded.ending():
            while True:
                try:
                    self._switch(algorithm, residuals, from_start=from_start, resumes=resumes)
                    return
                except RankLostError as error:
                    if self.joins_again(error):  # others, who have switched
                        return

    def _switch(
        self, algorithm: object, residuals: switching.Residuals, *, from_start: bool, resumes: bool
    ) -> None:
        before = self.step
        before.meet()
        following = switching.choose(before.bound, self.settings, algorithm, residuals)
        if not resumes:
            switching.check_moments(before.bound, following, from_start=from_start)
        self.loop.leave()
        try:
            if resumes:
                bound = switching.give_way(before, following)
            else:
                switching.come_to_rest(before)
                bound = switching.follow(before.bound, following, residuals, from_start=from_start)
            self.loop.given_up.catch_up()
        except BaseException:  # such as of moments that are not finite; a loop may go on as before
            self.schedule.stay()
            raise
        self.loop.step = self.make_step(bound)
        self.step.inputs.are_uneven = before.inputs.are_uneven
        self.metering.follow(bound)
        self.schedule.follow()
        self.replica.loaded.follow(bound.algorithm, is_elastic=self.is_elastic)

    def event(self, event: str, facts: Mapping[str, float]) -> None:
        """Something has happened on all ranks that no hook sees; those that are left exchange once more."""
        self.replica.mean.check_left(f"the event {event!r}, of engine.mark() or of a loader of clients,")
        self.step.tell(event, facts)
        while True:
            try:
                self.step.exchange_at(event)
                break
            except RankLostError as error:
                if self.go_on(error, in_step=False, in_round=True):
                    break
        if self._ranks is not None:
            self._ranks.admit()

    @property
    def is_elastic(self) -> bool:
        """Whether those that are left go on where others are lost."""
        return self._ranks is not None

    @property
    def can_go_on(self) -> bool:
        """Whether this rank goes on where others are lost."""
        return self._ranks is not None and not self.step.inputs.active

    def go_on(self, error: RankLostError, *, in_step: bool, in_round: bool = False) -> bool:
        """Go on without ranks that are lost; what they and others had on its way is given up.

        Args:
            error: what became of them; raised where this rank cannot go on.
            in_step: whether the training loop is in a step.
            in_round: whether an exchange that an event has begun is not over.

        Returns: whether others had finished that exchange, and this rank has what it brought.
        """
        if self._ranks is None or not self.can_go_on:
            raise error
        with self.replica.mean.left():
            return self._ranks.go_on(error, in_step=in_step, in_round=in_round)

    def catch_up(self, step: int) -> None:
        """This rank, which was behind others, has come to a step: from there on it may read with them."""
        self.loaders.catch_up(step)

    def step_ends(self) -> None:
        """A step has ended: where something was exchanged in it, workers that ask are admitted."""
        if self._ranks is not None and self.bound.plan.keeps_step:
            self._ranks.admit()

    def join(self) -> None:
        """Go on as a rank that was not there before, among those whom the world holds."""
        assert self._ranks is not None, "ranks stay the same without"
        self._ranks.join(self.bound, self.world, in_step=False)

    def go_on_with(self, resumed: Resumed) -> None:
        """Follow the training loop among other ranks."""
        # A rank that has joined may have begun with another algorithm than runs now.
        if resumed.step.follows_gradients != self.step.follows_gradients:
            self.hooks.follow(self.loop, gradients=resumed.step.follows_gradients)
        resumed.step.inputs.are_uneven = self.step.inputs.are_uneven
        self.loop.go_on_with(resumed.step, resumed.resumes_at, resumed.caught_up_at)
        self.schedule.time_anew()
        self.metering.go_on_with(self.bound, self.generation, resumed.targets)
        self.loaders.go_on_with(self.world.membership, resumed.loaders, resumed.caught_up_at)
        self.common_events.ended = resumed.events

    def joins_again(self, error: RankLostError) -> bool:
        """Go on between two steps; whether the others had given up this rank, which is a new one to them."""
        worker = self._worker
        self.go_on(error, in_step=False)
        return self._worker != worker

    def detach(self) -> None:
        """Follow the training loop no more."""
        self.hooks.remove()
        attached_models.discard(self.replica.model)

    def release(self, status: str) -> None:
        """Give back everything, and tell the other ranks what became of this one."""
        self.loaders.end()
        self._unclosed.close()
        self.metering.close(status)
        if self._ranks is not None:
            self._ranks.elastic.generations.leave(status)
        self.world.transport.announce(status)
        self.world.transport.close()
        self.step.release()
        buffer_pool.release()

    def make_step(self, bound: Bound) -> Step:
        """What is done in a step of an algorithm."""
        settings = self.settings
        return Step(bound, settings.drift_guard, self._synchronised, debug=settings.debug)

    def _synchronised(self) -> None:
        if self._ranks is not None:
            self._ranks.synchronised()
        self.metering.synchronised()
