"""The gradient rules of one bucket in one window, and the late ones among them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from relaxcomm.composition.algorithm import Rule
from relaxcomm.engine.finite import GRADIENT, is_finite, spoilt
from relaxcomm.engine.flights import Flight, Pipeline, Program
from relaxcomm.engine.gradients import GradientBuffer
from relaxcomm.engine.run import Run
from relaxcomm.tensors.buckets import Bucket


@dataclass(frozen=True)
class LateGradient:
    """A gradient exchange whose result takes effect in the step `due`."""

    due: float
    index: int
    flight: Flight
    spoilt: tuple[str, ...] = ()  # what this rank put in that was not finite


class BucketRules:
    """Runs the gradient rules that cover a bucket."""

    def __init__(self, run: Run, bucket: Bucket) -> None:
        self.run, self.bucket = run, bucket
        self.buffer = GradientBuffer(bucket)
        self.indices = [i for i in run.rules_of(bucket) if self._rule(i).payload.site == "backward"]
        self.late: deque[LateGradient] = deque()
        self.firing: list[int] = []
        self.spoilt: list[str] = []  # what was not finite before it was exchanged
        self._ran: list[int] = []
        self._moved = False
        self._observed: list[Tensor] = []
        self._landed_finite: bool | None = None

    def plan(self) -> bool:
        """Decide which rules fire in this step; whether the bucket has, or may have, anything to do."""
        self._ran, self._moved, self._observed, self._landed_finite = [], False, [], None
        self.spoilt = []
        known = [i for i in self.indices if self._rule(i).trigger.known == "start"]
        self.firing = [i for i in known if self.run.firing(self._rule(i), self.bucket)]
        return bool(self.firing or self._due() or self._voting())

    def plan_voted(self) -> bool:
        """Decide, after the vote, which of the other rules fire; whether any does."""
        self.firing = [i for i in self._voting() if self.run.firing(self._rule(i), self.bucket)]
        return bool(self.firing)

    @property
    def accumulates(self) -> bool:
        """Whether a second backward in one step would add up to the same as one."""
        linear = all(self._rule(i).compressor.linear and not self._rule(i).delay for i in self.firing)
        return linear and len(self._moving()) == len(self.firing) and not self._voting()

    @property
    def same_result(self) -> bool:
        """Whether all ranks see the same results in this step."""
        return all(self._rule(i).exchange.same_result for i in self._ran)

    @property
    def flags_travel(self) -> bool:
        """Whether used-flags reach all ranks inside the messages."""
        return all(_carries_flags(self._rule(i)) for i in self._moving())

    def launch(self, pipeline: Pipeline) -> None:
        """Collect the gradients and issue the first operation."""
        self.buffer.unused = []
        if not self.firing and not self._due():
            return
        self.buffer.collect()
        self.run.exchanged = True
        self._ran += self.firing
        self._moved = self._moved or bool(self._moving() or self._due())
        late = [i for i in self.firing if self._rule(i).delay]
        # The exchange overwrites it, so later nobody could say on which rank it arose.
        found = spoilt(self.bucket, self.buffer.main, GRADIENT) if self._looks else []
        if late:
            self._launch_late(late[0], found)
        elif self.firing:
            self.spoilt += found
            operations = sum(self._operations(i) for i in self.firing)
            pipeline.launch(
                Flight(self._program(), step=self.run.step, unit=self.bucket.index, operations=operations)
            )

    def land_late(self) -> None:
        """Put the gradient that is due in the place of this step's own, or zeros while none is due."""
        due = self._due()
        replaces = any(self._rule(i).delay for i in self.firing)
        if replaces:
            self.buffer.main.zero_()
        if replaces or due:
            self._landed_finite = None
        for late in due:
            self.late.remove(late)
            self.spoilt += late.spoilt
            self.buffer.main.add_(self._late_value(late))

    def drain(self) -> bool:
        """Put the oldest late gradient into `.grad`; whether there was one."""
        if not self.late:
            return False
        late = self.late.popleft()
        self.spoilt = list(late.spoilt)
        self.buffer.main.copy_(self._late_value(late))
        self.buffer.expose(range(len(self.bucket.items)))
        return True

    @property
    def results(self) -> list[Tensor]:
        """What the exchanges of this step have brought."""
        return [*self._observed, *([self.buffer.main] if self._moved else [])]

    def bad_results(self) -> list[Tensor]:
        """Those of `results` that are not finite; the host waits for them."""
        if self._landed_finite:
            return [result for result in self._observed if not is_finite(result)]
        return [result for result in self.results if not is_finite(result)]

    def commit(self, good: bool | Tensor) -> None:
        """Keep or drop what the primitives wrote to their slots."""
        for index in self.indices:
            self.run.state[index, self.bucket.index].commit(good)

    def _moving(self) -> list[int]:
        return [i for i in self.firing if self._rule(i).outer.target]

    def _due(self) -> list[LateGradient]:
        return [late for late in self.late if late.due <= self.run.step]

    def _voting(self) -> list[int]:
        rules = ((i, self._rule(i)) for i in self.indices)
        return [i for i, rule in rules if rule.trigger.known == "backward" and rule.is_active(self.run.step)]

    def _rule(self, index: int) -> Rule:
        return self.run.algorithm.rules[index]

    def _operations(self, index: int) -> int:
        rule = self._rule(index)
        return rule.compressor.rounds * rule.exchange.operations

    def _program(self) -> Program:
        buffer, numel = self.buffer, self.bucket.numel
        for index in self.firing:
            rule, state = self._rule(index), self.run.state[index, self.bucket.index]
            cx = self.run.context(rule)
            message = self._message(rule)
            if rule.outer.target is None:  # what lies in `.grad` stays there
                message = message.clone()
            rule.payload.read(cx, self.bucket, state["payload"], message[:numel])
            local = message[:numel].clone() if self.run.control.watches(index) else None
            result = yield from self.run.program(index, self.bucket, message)
            self.run.see(index, self.bucket, local, result[:numel])
            if rule.outer.target is None:
                self._observed.append(result)
                continue
            settled = rule.payload.settle(cx, self.bucket, state["payload"], result[:numel])
            value = rule.outer.apply(cx, self.bucket, state["outer"], settled, None)
            buffer.take(value, result[numel:])
            rule.payload.write(cx, self.bucket, state["payload"], buffer.main, None)
        if self._moved and buffer.main.device.type == "cpu":  # now, while other buckets are on their way
            self._landed_finite = is_finite(buffer.main)
        return buffer.main

    def _message(self, rule: Rule) -> Tensor:
        return self.buffer.whole if _carries_flags(rule) else self.buffer.main

    @property
    def _looks(self) -> bool:
        """Whether a gradient that is not finite is an error, and looking for one holds up nobody."""
        return self.run.scaler is None and self.buffer.main.device.type == "cpu"

    def _launch_late(self, index: int, found: Sequence[str]) -> None:
        rule, state = self._rule(index), self.run.state[index, self.bucket.index]
        rule.payload.read(self.run.context(rule), self.bucket, state["payload"], self.buffer.main)
        flight = Flight(
            self.run.program(index, self.bucket, self._message(rule).clone()),
            step=self.run.step,
            unit=self.bucket.index,
            operations=self._operations(index),
        )
        flight.launch(self.run.transport, self.run.statistics)
        self.late.append(LateGradient(rule.due(self.run.step), index, flight, tuple(found)))

    def _late_value(self, late: LateGradient) -> Tensor:
        rule, state = self._rule(late.index), self.run.state[late.index, self.bucket.index]
        cx, numel = self.run.context(rule), self.bucket.numel
        result = late.flight.land(self.run.transport, self.run.statistics)
        settled = rule.payload.settle(cx, self.bucket, state["payload"], result[:numel])
        value = rule.outer.apply(cx, self.bucket, state["outer"], settled, None)
        rule.payload.write(cx, self.bucket, state["payload"], value, None)
        if result.numel() > numel:
            self.buffer.expose([i for i, flag in enumerate(result[numel:].tolist()) if flag > 0])
        return value


def _carries_flags(rule: Rule) -> bool:
    """Whether entries behind the bucket's own come through as they are; a server knows the bucket alone."""
    return rule.compressor.elementwise and rule.exchange.collective
