"""The gradient rules: exchanged bucket by bucket while backward goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from relaxcomm.engine.bucket_rules import BucketRules
from relaxcomm.engine.finite import GRADIENT, DeferredCheck, is_finite, non_finite_error, spoilt
from relaxcomm.engine.flights import Pipeline
from relaxcomm.engine.readiness import Readiness
from relaxcomm.engine.run import Run
from relaxcomm.errors import NonFiniteError, UsageError
from relaxcomm.network.operations import Agree, Label


class Backward:
    """Runs the gradient rules of one backward at a time, then casts the step's votes.

    Args:
        run: the run.
        on_begin: called before the first gradient of a backward is looked at.
    """

    def __init__(self, run: Run, on_begin: Callable[[], None]) -> None:
        self.run, self._on_begin = run, on_begin
        self.buckets: list[BucketRules] = []
        self.begun = False
        self._has_rules = bool(run.algorithm.at("backward"))
        self._open = False
        self._readiness = Readiness([item.name for item in run.parameters])
        self._pipeline = Pipeline(run.transport, run.statistics)
        self._deferred = DeferredCheck()

    def hook(self) -> list[RemovableHandle]:
        """Follow every trainable parameter; nothing is hooked if no rule looks at gradients."""
        if not (self._has_rules or self.run.votes or self.run.micro or self.run.algorithm.plan):
            return []
        return [
            # torch leaves this method without types
            item.tensor.register_post_accumulate_grad_hook(partial(self._arrived, index))  # type: ignore[no-untyped-call]
            for index, item in enumerate(self.run.parameters)
        ]

    def is_due(self) -> bool:
        """Whether the ranks talk at the end of this step's backward, the same on all of them."""
        if not (self._has_rules or self.run.votes):
            return False
        if any(late.due <= self.run.step for bucket in self.buckets for late in bucket.late):
            return True
        if self.run.votes.due():
            return True
        rules = [rule for _, rule in self.run.algorithm.at("backward")]
        if self.run.buckets is None:
            return any(rule.is_active(self.run.step) for rule in rules)
        return any(
            self.run.firing(self.run.algorithm.rules[index], bucket)
            for bucket in self.run.buckets
            for index in self.run.rules_of(bucket)
            if self.run.algorithm.rules[index] in rules
        )

    def end(self, *, shadow: bool = False) -> None:
        """Backward has ended: exchange what is left, decide together, make `.grad` final."""
        self.begun = False
        with self.run.statistics.busy():
            if self._open:
                if not self.buckets:
                    self._agree_layout()
                    self._plan()
                self._readiness.learn()
            if self._open:
                self._launch(self._readiness.rest())
                self._land()
            self.run.votes.cast(abstain=shadow)
            if self._open:
                self._run_voted()
                self._commit()
            self.run.control.send()

    def shadow(self) -> None:
        """Take part in the others' backward with zero gradients; `.grad` ends up None."""
        self._clear()
        self._open_window()
        self.end(shadow=True)
        self._clear()

    def drain(self) -> bool:
        """Put the oldest late gradients into `.grad`; whether there were any.

        Raises: NonFiniteError on all ranks if they are not finite; with a scaler they are left out.
        """
        drained = [bucket for bucket in self.buckets if bucket.drain()]
        bad = [(one, one.buffer.main) for one in drained if not is_finite(one.buffer.main)]
        same = all(rule.exchange.same_result for _, rule in self.run.algorithm.at("backward"))
        if drained and not self._all_good(not bad, same):
            if self.run.scaler is None:
                raise self._error(bad)
            self._clear()
        return bool(drained)

    def check_last(self) -> None:
        """Raise NonFiniteError on all ranks if the last step's gradients were not finite, on a GPU."""
        self._deferred.raise_if_bad()

    def release(self) -> None:
        """Detach `.grad` from the flat buffers."""
        for bucket in self.buckets:
            bucket.buffer.release()

    def bind(self) -> None:
        """Make the flat buffers for a layout."""
        assert self.run.buckets is not None
        self.buckets = [BucketRules(self.run, bucket) for bucket in self.run.buckets]
        self._readiness.bind(self.run.buckets)

    def _arrived(self, index: int, parameter: Tensor) -> None:
        if self.run.micro is not None:
            self.run.micro.arrived = True
        if self.run.paused:
            self.run.unsynchronised = True
            return
        if not self.begun:
            self._begin()
        if self._open and self._readiness.arrive(index):
            with self.run.statistics.busy():
                self._launch(self._readiness.complete())

    def _begin(self) -> None:
        if torch.is_grad_enabled():
            raise UsageError(
                "backward(create_graph=True) is not supported: exchanged gradients carry no graph"
            )
        self.begun = True
        self._on_begin()
        self._open_window()

    def _clear(self) -> None:
        for item in self.run.parameters:
            item.tensor.grad = None

    def _open_window(self) -> None:
        self._deferred.raise_if_bad()
        self.run.check_parameters()
        self.run.control.check_needs()
        if not self._has_rules:
            return
        if self.run.buckets is not None and not self.buckets:
            self.bind()
        self._plan()

    def _plan(self) -> None:
        if not self.buckets:
            self._open = True
            return
        self._open = sum(bucket.plan() for bucket in self.buckets) > 0
        if not self._open:
            return
        if self.run.synchronised and not all(bucket.accumulates for bucket in self.buckets):
            raise UsageError(
                f"a second synchronising backward in step {self.run.step}: {self.run.algorithm!r} keeps "
                "state or delays, so exchanging twice is not the same as exchanging the sum; accumulate "
                "under engine.no_sync() and leave it for the last backward"
            )
        self.run.synchronised = True
        self._readiness.open()

    def _agree_layout(self) -> None:
        order = self.run.transport.gather_objects(self._readiness.order())[0]
        assert isinstance(order, list)
        self.run.lay_out(order)
        self.bind()

    def _launch(self, indices: Iterable[int]) -> None:
        for index in indices:
            self.buckets[index].launch(self._pipeline)

    def _land(self) -> None:
        self._settle()
        for bucket in self.buckets:
            bucket.land_late()

    def _run_voted(self) -> None:
        """Run the gradient rules whose trigger was decided by the vote."""
        fired = [bucket for bucket in self.buckets if bucket.plan_voted()]
        for bucket in fired:
            bucket.launch(self._pipeline)
        if fired:
            self._settle()

    def _settle(self) -> None:
        """Finish the flights and give a `.grad` to what some rank has used."""
        travel = all(bucket.flags_travel for bucket in self.buckets)
        agreed = None if travel else self._agree_used()
        self._pipeline.finish()
        for bucket in self.buckets:
            if bucket.buffer.unused:
                flags = agreed[bucket.bucket.index] if agreed else bucket.buffer.flags.tolist()
                bucket.buffer.settle(flags)

    def _agree_used(self) -> list[list[float]]:
        flags = torch.cat([bucket.buffer.flags.float().cpu() for bucket in self.buckets])
        label = Label(self.run.step, "used parameters")
        with self.run.statistics.waiting():
            total = self.run.transport.issue(Agree(flags, "max"), label).wait()
        assert isinstance(total, Tensor)
        sizes = [len(bucket.bucket.items) for bucket in self.buckets]
        return [part.tolist() for part in torch.split(total, sizes)]

    def _commit(self) -> None:
        """Keep state only if all is finite; without a scaler a gradient that is not is an error."""
        found = [(bucket.bucket, result) for bucket in self.buckets for result in bucket.results]
        if not found:
            return
        good: bool | Tensor
        if found[0][0].device.type == "cpu":
            bad = [(rules, result) for rules in self.buckets for result in rules.bad_results()]
            good = not bad
        else:
            bad, results = [], [result for _, result in found]
            good = self._deferred.look(results, step=self.run.step, is_error=self.run.scaler is None)
        good = self._all_good(good, all(rules.same_result for rules in self.buckets))
        for rules in self.buckets:
            rules.commit(good)
        if good is False and self.run.scaler is None:
            raise self._error(bad)

    def _all_good(self, good: bool | Tensor, same_result: bool) -> bool | Tensor:
        """Whether all is finite on every rank; they ask each other where they get different results."""
        if same_result:
            return good
        with self.run.statistics.waiting():
            anyone = self.run.anyone(not bool(good), "not finite").wait()
        assert isinstance(anyone, Tensor)
        return not anyone.item()

    def _error(self, bad: Sequence[tuple[BucketRules, Tensor]]) -> NonFiniteError:
        came = [name for rules, result in bad for name in spoilt(rules.bucket, result, GRADIENT)]
        put_in = [name for rules in self.buckets for name in rules.spoilt]
        return non_finite_error(self.run.transport, put_in, came, self.run.step)
