"""The gradient rules: exchanged bucket by bucket while backward goes on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from relaxcomm.engine.bucket_rules import BucketRules
from relaxcomm.engine.finite import DeferredCheck, is_finite, non_finite_error
from relaxcomm.engine.flights import Pipeline
from relaxcomm.engine.run import Run
from relaxcomm.errors import UsageError
from relaxcomm.operations import Agree, Label


class Backward:
    """Follows one backward at a time: which gradients are there, which buckets are on their way.

    Buckets are launched in index order, each as soon as it and all before it are complete. The
    first backward launches nothing until its end: it shows in which order gradients become ready
    (rank 0's order becomes the layout) and how often each arrives, which is more than once under
    reentrant checkpointing.

    Args:
        run: the run.
        on_begin: called before the first gradient of a backward is looked at.
    """

    def __init__(self, run: Run, on_begin: Callable[[], None]) -> None:
        self.run, self._on_begin = run, on_begin
        self.has_rules = bool(run.algorithm.at("backward"))
        self.buckets: list[BucketRules] = []
        self.begun = False
        self._open = False
        self._learning = True
        self._arrivals: list[int] = []
        self._expected = [1] * len(run.parameters)
        self._left: list[int] = []
        self._missing: list[int] = []
        self._bucket_of: list[int] = []
        self._next = 0
        self._pipeline = Pipeline(run.transport, run.statistics)
        self._deferred = DeferredCheck()

    def hook(self) -> list[RemovableHandle]:
        """Follow every trainable parameter; nothing is hooked if no rule exchanges gradients."""
        if not self.has_rules:
            return []
        return [
            # torch leaves this method without types
            item.tensor.register_post_accumulate_grad_hook(partial(self._arrived, index))  # type: ignore[no-untyped-call]
            for index, item in enumerate(self.run.parameters)
        ]

    def _arrived(self, index: int, parameter: Tensor) -> None:
        if self.run.paused:
            self.run.unsynchronised = True
            return
        if not self.begun:
            self._begin()
        if not self._open:
            return
        if self._learning:
            self._arrivals.append(index)
            return
        self._left[index] -= 1
        if self._left[index] == 0:
            place = self._bucket_of[index]
            self._missing[place] -= 1
            if place == self._next and not self._missing[place]:
                with self.run.statistics.busy():
                    self._launch(until_missing=True)
        elif self._left[index] < 0 and self._bucket_of[index] < self._next:
            raise UsageError(
                f"{self.run.parameters[index].name} got another gradient after its bucket was exchanged: it "
                "is used more often in this backward than in the first one, inside reentrant checkpoints; "
                "use torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
            )

    def _begin(self) -> None:
        if torch.is_grad_enabled():
            raise UsageError(
                "backward(create_graph=True) is not supported: exchanged gradients carry no graph"
            )
        self.begun = True
        self._on_begin()
        self._open_window()

    def shadow(self) -> None:
        """Take part in the others' backward with zero gradients; `.grad` ends up None."""
        self._clear()
        self._open_window()
        self.end()
        self._clear()

    def _clear(self) -> None:
        for item in self.run.parameters:
            item.tensor.grad = None

    def _open_window(self) -> None:
        self._deferred.raise_if_bad()
        self.run.check_parameters()
        if self.run.buckets is not None and not self.buckets:
            self.bind()
        self._plan()

    def end(self) -> None:
        """Backward has ended: exchange what is left, decide together, make `.grad` final."""
        self.begun = False
        if not self._open:
            return
        with self.run.statistics.busy():
            if not self.buckets:
                self._agree_layout()
                self._plan()
            if self._learning:
                self._learn()
            if self._open:
                self._finish()

    def drain(self) -> bool:
        """Put the oldest late gradients into `.grad`; whether there were any."""
        return sum(bucket.drain() for bucket in self.buckets) > 0

    def release(self) -> None:
        """Detach `.grad` from the flat buffers."""
        for bucket in self.buckets:
            bucket.buffer.release()

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
        self.run.synchronised = self.run.exchanged = True
        self._left = list(self._expected)
        self._missing = [len(bucket.bucket.items) for bucket in self.buckets]
        self._next = 0

    def _agree_layout(self) -> None:
        names = [item.name for item in self.run.parameters]
        seen = [names[index] for index in dict.fromkeys(self._arrivals)]
        order = self.run.transport.gather_objects(seen + [name for name in names if name not in set(seen)])[0]
        assert isinstance(order, list)
        self.run.lay_out(order)
        self.bind()

    def is_due(self) -> bool:
        """Whether a rule exchanges gradients in this step, the same on all ranks."""
        rules = [rule for _, rule in self.run.algorithm.at("backward")]
        if self.run.buckets is None:
            return any(rule.is_active(self.run.step) for rule in rules)
        if any(late.due <= self.run.step for bucket in self.buckets for late in bucket.late):
            return True
        return any(
            self.run.firing(self.run.algorithm.rules[index], bucket)
            for bucket in self.run.buckets
            for index in self.run.rules_of(bucket)
            if self.run.algorithm.rules[index] in rules
        )

    def bind(self) -> None:
        """Make the flat buffers for a layout."""
        assert self.run.buckets is not None
        self.buckets = [BucketRules(self.run, bucket) for bucket in self.run.buckets]
        place = {name: bucket.index for bucket in self.run.buckets for name in bucket.names}
        self._bucket_of = [place[item.name] for item in self.run.parameters]

    def _learn(self) -> None:
        for index in set(self._arrivals):
            self._expected[index] = self._arrivals.count(index)
        self._learning = not self._arrivals
        self._arrivals = []

    def _launch(self, *, until_missing: bool) -> None:
        while self._next < len(self.buckets) and not (until_missing and self._missing[self._next]):
            self.buckets[self._next].launch(self._pipeline)
            self._next += 1

    def _finish(self) -> None:
        self._launch(until_missing=False)
        agreed = None if all(bucket.flags_travel for bucket in self.buckets) else self._agree_used()
        self._pipeline.finish()
        for bucket in self.buckets:
            bucket.land_late()
            if bucket.buffer.unused:
                flags = agreed[bucket.bucket.index] if agreed else bucket.buffer.flags.tolist()
                bucket.buffer.settle(flags)
        self._commit()

    def _agree_used(self) -> list[list[float]]:
        flags = torch.cat([bucket.buffer.flags.float().cpu() for bucket in self.buckets])
        label = Label(self.run.step, "used parameters")
        with self.run.statistics.waiting():
            total = self.run.transport.issue(Agree(flags, "max"), label).wait()
        assert isinstance(total, Tensor)
        values, parts = total.tolist(), []
        for bucket in self.buckets:
            count = len(bucket.bucket.items)
            parts.append(values[:count])
            values = values[count:]
        return parts

    def _commit(self) -> None:
        """Keep state only if all is finite; without a scaler a gradient that is not is an error."""
        if self.buckets[0].bucket.device.type != "cpu":
            mains = [bucket.buffer.main for bucket in self.buckets]
            good = self._deferred.look(mains, step=self.run.step, is_error=self.run.scaler is None)
            for bucket in self.buckets:
                bucket.commit(good)
            return
        bad = [(b.bucket, b.buffer.main) for b in self.buckets if not is_finite(b.buffer.main)]
        for bucket in self.buckets:
            bucket.commit(not bad)
        if bad and self.run.scaler is None:
            raise non_finite_error("gradients", bad, self.run.step)
