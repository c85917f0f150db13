"""The gradient rules: exchanged bucket by bucket while backward goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

from relaxcomm.step import used_parameters
from relaxcomm.step.agreements import Answer
from relaxcomm.step.backward_errors import second_backward_error, taken_away_error
from relaxcomm.step.bound import Bound
from relaxcomm.step.flight import Pipeline, land_all
from relaxcomm.step.gradient_finiteness import GradientFiniteness
from relaxcomm.step.gradient_transfers import GradientTransfers
from relaxcomm.step.readiness import Readiness
from relaxcomm.step.transfer import Transfer


class Backward:
    """Runs the gradient rules of one backward at a time, and casts the step's votes.

    Args:
        bound: the algorithm on a model.
        debug: whether gradients are looked at for NaN where nothing is kept that it would spoil, too.
    """

    def __init__(self, bound: Bound, *, debug: bool) -> None:
        self._bound, self._debug = bound, debug
        self._plan, self._clock = bound.plan, bound.clock
        self.buckets: list[GradientTransfers] = []
        self.synchronised = False
        """Whether a backward of this step was exchanged, or voted on."""
        self.exchanged = False
        """Whether this step's gradients were exchanged."""
        self._large: dict[int, tuple[GradientTransfers, int]] = {}
        self._has_rules = bool(bound.algorithm.at("backward"))
        self.sends_late = any(rule.delay for _, rule in bound.algorithm.at("backward"))
        """Whether gradients come in later steps than they are sent in."""
        self._is_open = False
        self._readiness = Readiness([item.name for item in bound.replica.parameters])
        self._pipeline = Pipeline()
        self._finiteness = GradientFiniteness(bound)

    def meets(self) -> bool:
        """Whether the ranks talk at the end of this step's backward, as of buckets after the first one."""
        return self.is_due() or (self._has_rules and self._plan.buckets is None)

    def is_due(self) -> bool:
        """Whether a rule exchanges gradients of this step, late ones land, or the ranks vote."""
        step = self._clock.step
        if self._plan.votes and self._plan.ballot(step):
            return True
        if not self._has_rules:
            return False
        if any(bucket.late.due() for bucket in self.buckets):
            return True
        if self._plan.buckets is None:
            return any(rule.is_active(step) for _, rule in self._bound.algorithm.at("backward"))
        return any(self._plan.tasks[index] for index in self._plan.at("backward", step, self._clock.context))

    def begin(self) -> None:
        """Open the window: decide which rules exchange the gradients of this backward."""
        self._bound.replica.trained.check_frozen()
        self._bound.controllers.check_loader()
        if not self._has_rules:
            return
        if self._plan.buckets is not None:
            if self._plan.gradients_end <= self._clock.step and not any(one.late for one in self.buckets):
                self.release(ends=True)  # as much as the model
                return
            if not self.buckets:
                self._bind()
        self._begin_buckets()

    def ready(self, indices: Sequence[int]) -> None:
        """Parameters have their gradients: launch the buckets that are complete with them, in order."""
        if not self._is_open:
            return
        complete = self._readiness.arrive(indices)
        if self._large:
            self._take_large(indices)
        if complete:
            self._launch(self._readiness.complete())

    @property
    def awaited(self) -> Set[int]:
        """Parameters with whose gradients something is to be done as soon as they are there."""
        return self._large.keys() | self._readiness.closing

    def end(self, *, abstains: bool = False) -> None:
        """Exchange what is left, decide together, make `.grad` final; who abstains has no gradients."""
        step = self._clock.step
        if self._is_open:
            self._flush()
        if ballot := self._plan.ballot(step):
            contexts = {trigger: self._clock.context(rule) for trigger, rule in ballot.items()}
            self._bound.votes.cast(contexts, step, abstain=abstains)
            self.synchronised = True
        finite = self._ask()
        if self._is_open:
            if self._run_voted():
                finite = self._ask()
            try:
                self._finiteness.commit(self.buckets, finite)
            finally:
                for bucket in self.buckets:
                    bucket.buffer.theirs.give_back()
        self._is_open = False

    def tick(self) -> None:
        """The step is closed."""
        self.synchronised = self.exchanged = False

    def abort(self) -> None:
        """Forget a backward that an error has ended, once what peers have sent with it is there."""
        self._pipeline.finish()
        for bucket in self.buckets:
            bucket.abort()
        self._readiness.abort()
        self._is_open = False
        self.tick()

    @property
    def late(self) -> Iterator[Transfer]:
        """The gradients on their way from step to step."""
        return (late for bucket in self.buckets for late in bucket.late)

    def overtake(self) -> None:
        """Other weights were loaded, for which no gradient has come back yet: what comes is zeros."""
        for late in self.late:
            late.is_overtaken = True

    def drain(self) -> bool:
        """Put the oldest late gradients into `.grad`; whether there were any.

        Raises: NonFiniteError on all ranks if they are not finite; with a scaler they are left out.
        """
        drained = [bucket for bucket in self.buckets if bucket.late]
        if drained:
            self._bound.replica.clear_gradients()  # what is not late was applied before
            land_all(bucket.late.oldest().flight for bucket in drained)
            for bucket in drained:
                bucket.drain()
            self._finiteness.check_late(self.buckets, drained)
        return bool(drained)

    def release(self, *, ends: bool = False) -> None:
        """Detach `.grad` from the flat buffers, and let go of these where nothing is exchanged any more."""
        for bucket in self.buckets:
            bucket.buffer.release()
        if ends:
            self.buckets, self._large = [], {}

    def export(self, is_loaded: bool) -> list[list[object]]:
        """Late gradients as a checkpoint keeps them, maybe beside loaded weights; waits for them."""
        land_all(late.flight for late in self.late)
        return [late for bucket in self.buckets for late in bucket.late.export(is_loaded)]

    def restore(self, saved: Iterable[Sequence[Any]]) -> None:
        """Put late gradients back that a checkpoint has saved, into a layout that was made anew."""
        if self._has_rules:
            self._bind()
            for due, index, unit, result, *counts in saved:
                self.buckets[unit].late.restore(due, index, result, counts)

    def _bind(self) -> None:
        """Make the flat buffers for a layout."""
        bound = self._bound
        assert bound.plan.buckets is not None, "it is laid out first"
        self.buckets = [GradientTransfers(bucket, bound, debug=self._debug) for bucket in bound.plan.buckets]
        self._readiness.bind(bound.plan.buckets)
        index = {item.name: index for index, item in enumerate(bound.replica.parameters)}
        self._large = {
            index[one.bucket.names[in_bucket]]: (one, in_bucket)
            for one in self.buckets
            for in_bucket in one.buffer.large
        }

    def _begin_buckets(self) -> None:
        if not self.buckets:
            self._is_open = True
            return
        fired = self._plan.at("backward", self._clock.step, self._clock.context)
        voting = bool(self._plan.voting("backward", self._clock.step))
        self._is_open = sum([bucket.begin(fired) for bucket in self.buckets]) > 0 or voting
        if not self._is_open:
            return
        if self.synchronised and (voting or not all(bucket.firing.accumulates for bucket in self.buckets)):
            raise second_backward_error(self._clock.step, self._bound.algorithm)
        self.synchronised = True
        self._readiness.open()

    def _flush(self) -> None:
        """Launch what is left, and land all."""
        if not self.buckets:
            order = self._bound.world.gather_all(self._readiness.order(), "the first backward")[0]
            self._bound.lay_out(order)
            self._bind()
            self._begin_buckets()
        self._readiness.learn()
        if self._is_open:
            self._launch(self._readiness.rest(), self._readiness.missing())
            self._land()
            land_all(late.flight for bucket in self.buckets for late in bucket.late.due())
            for bucket in self.buckets:
                bucket.land_late()

    def _take_large(self, indices: Sequence[int]) -> None:
        """Copy large gradients, while they are in the cache."""
        for index in indices:
            if index in self._large and self._readiness.has_all(index):
                bucket, in_bucket = self._large[index]
                bucket.take(in_bucket)

    def _launch(self, indices: Iterable[int], missing: Set[str] = frozenset()) -> None:
        """Launch buckets, in which these parameters have got no gradient in this backward."""
        for index in indices:
            self.exchanged = self.buckets[index].launch(self._pipeline, missing) or self.exchanged
            for in_bucket in self.buckets[index].buffer.unused:
                if (name := self.buckets[index].bucket.names[in_bucket]) not in missing:
                    raise taken_away_error(name)

    def _ask(self) -> Answer | None:
        """Send what the ranks decide together; whether all results are finite, where that is asked."""
        finite = self._finiteness.ask(self.buckets)
        self._bound.controllers.ask(self._bound.context)
        self._bound.agreements.send(self._clock.step)
        return finite

    def _run_voted(self) -> bool:
        """Run the gradient rules for which the ranks have voted; whether there were any."""
        step = self._clock.step
        voting = self._plan.voting("backward", step)
        if not voting:
            return False
        self._bound.votes.read(voting, step)
        voted = self._plan.at("backward", step, self._clock.context, known="backward")
        fired = [index for index, bucket in enumerate(self.buckets) if bucket.fire(voted)]
        self._launch(fired, self._readiness.missing())
        if fired:
            self._land()
        return bool(fired)

    def _land(self) -> None:
        """Finish the flights and give a `.grad` to what some rank has used."""
        asked = used_parameters.ask(self._bound, self.buckets)
        self._pipeline.finish()
        used_parameters.expose(self._bound, self.buckets, asked)
