"""The rules that run after the optimizer's step, on parameters or what they have moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from relaxcomm.algorithm import Rule
from relaxcomm.buckets import Bucket, build_buckets
from relaxcomm.engine.finite import is_finite, non_finite_error
from relaxcomm.engine.flights import Flight, Pipeline
from relaxcomm.engine.run import Run, float_buffers
from relaxcomm.engine.slots import RuleState
from relaxcomm.primitives.payloads import parameters
from relaxcomm.primitives.triggers import every
from relaxcomm.transport.base import Pending


@dataclass(frozen=True)
class Exchange:
    """An exchange on its way: its result is applied in the step `due`."""

    due: int
    index: int | None  # of the rule; None for the buffers that go with one
    rule: Rule
    state: RuleState
    bucket: Bucket
    flight: Flight
    snapshot: Tensor | None
    is_good: bool = True
    agreement: Pending | None = None  # whether any rank put in NaN; on its way with the exchange


class Step:
    """Runs step rules in declared order; each reads what the one before wrote."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.rules = run.algorithm.at("step")
        self.late: list[Exchange] = []

    def is_due(self) -> bool:
        """Whether anything is exchanged or applied in this step, the same on all ranks."""
        buckets = self.run.buckets or []
        return any(
            index in self.run.rules_of(bucket) and self.run.firing(rule, bucket)
            for index, rule in self.rules
            for bucket in buckets
        )

    def lands(self) -> bool:
        """Whether a late result is applied in this step, the same on all ranks."""
        return any(late.due <= self.run.step for late in self.late)

    def apply_due(self) -> None:
        """Apply late results that are due."""
        due = [late for late in self.late if late.due <= self.run.step]
        self.late = [late for late in self.late if late.due > self.run.step]
        self._apply(due)

    def before(self) -> None:
        """Let payloads change the gradients just before the optimizer's step."""
        for index, rule in self.rules:
            for bucket in self.run.buckets or []:
                if index in self.run.rules_of(bucket) and rule.is_active(self.run.step):
                    state = self.run.state[index, bucket.index]
                    rule.payload.before_step(self.run.context(rule), bucket, state["payload"])

    def mark(self, event: str, facts: Mapping[str, float]) -> None:
        """Tell the payloads of an event and run the rules that wait for it."""
        for index, rule in self.rules:
            for bucket in self.run.buckets or []:
                if index in self.run.rules_of(bucket):
                    state = self.run.state[index, bucket.index]
                    rule.payload.event(self.run.context(rule), bucket, state["payload"], event, facts)
                    state.commit(True)
        before, self.run.event = self.run.exchanged, event
        try:
            self.run.exchanged = False
            if self.is_due():
                self.exchange()
            self.run.statistics.synchronisations += self.run.exchanged
        finally:
            self.run.event, self.run.exchanged = None, before

    def exchange(self) -> None:
        """Run the rules that fire in this step."""
        if not self.rules:
            return
        for index, rule in self.rules:
            fired = [
                bucket
                for bucket in self.run.buckets or []
                if index in self.run.rules_of(bucket) and self.run.firing(rule, bucket)
            ]
            if fired:
                self.run.check_parameters()
                self.run.exchanged = True
                self._exchange(index, rule, fired)

    def made_equal(self) -> bool:
        """Whether all replicas should be equal after this step, the same on all ranks."""
        if not self.run.algorithm.keeps_step:
            return False
        if not self.run.algorithm.lets_replicas_differ:
            return True
        return any(
            rule.select is None
            and not rule.delay
            and rule.exchange.same_result
            and not rule.payload.keeps_local
            and all(self.run.firing(rule, bucket) for bucket in self.run.buckets or [])
            for _, rule in self.rules
        )

    def drain(self) -> None:
        """Apply everything that is on its way."""
        late, self.late = self.late, []
        self._apply(late)

    def _exchange(self, index: int, rule: Rule, buckets: list[Bucket]) -> None:
        pipeline = Pipeline(self.run.transport, self.run.statistics)
        round = self.run.rounds[index, buckets[0].index]
        made = [self._launch(pipeline, index, rule, self.run.state[index, b.index], b) for b in buckets]
        if rule.payload.averages_buffers and rule.exchange.collective:
            plain = _plain(rule)
            made += [
                self._launch(pipeline, None, plain, RuleState(plain, b), b, round)
                for b in self._buffer_buckets()
            ]
        if _parts(rule) and rule.compressor.keeps_finite:
            bad = not all(one.is_good for one in made)
            agreement = self.run.anyone(bad, "not finite")
            made = [replace(one, agreement=agreement) for one in made]
        if rule.delay:
            self.late += made
        else:
            pipeline.finish()
            self._apply(made)

    def restored(self, saved: list[Any]) -> Exchange:
        """An exchange that a checkpoint saved with its result."""
        due, index, unit, result, snapshot = saved
        flight = Flight.landed(result)
        if index is None:
            rule = _plain(self.rules[0][1])
            bucket = self._buffer_buckets()[unit]
            return Exchange(due, None, rule, RuleState(rule, bucket), bucket, flight, snapshot)
        assert self.run.buckets is not None
        bucket, state = self.run.buckets[unit], self.run.state[index, unit]
        return Exchange(due, index, self.run.algorithm.rules[index], state, bucket, flight, snapshot)

    def _buffer_buckets(self) -> list[Bucket]:
        return build_buckets(float_buffers(self.run.model), bucket_bytes=self.run.bucket_bytes)

    def _launch(
        self,
        pipeline: Pipeline,
        index: int | None,
        rule: Rule,
        state: RuleState,
        bucket: Bucket,
        round: int = 0,
    ) -> Exchange:
        late = rule.delay > 0
        cx = self.run.context(rule, round)
        tensor = rule.payload.read(cx, bucket, state["payload"], bucket.empty() if late else bucket.scratch())
        is_good = rule.exchange.same_result or is_finite(tensor)
        if not rule.exchange.collective and not is_good:
            raise non_finite_error("parameters", [(bucket, tensor)], self.run.step)
        program = (
            self.run.exchanging("buffers", rule, cx, state, tensor)
            if index is None
            else self.run.program(index, bucket, tensor)
        )
        flight = Flight(
            program,
            # Ranks that play clients or ask a server are not in the same step.
            step=self.run.step if self.run.algorithm.keeps_step else self.run.rounds.get((index or 0, 0), 0),
            unit=bucket.index,
            operations=rule.compressor.rounds * rule.exchange.operations,
        )
        if late:
            flight.launch(self.run.transport)
        else:
            pipeline.launch(flight)
        snapshot = bucket.gather(bucket.empty()) if late else None
        return Exchange(self.run.step + rule.delay, index, rule, state, bucket, flight, snapshot, is_good)

    def _apply(self, made: list[Exchange]) -> None:
        """Write results to the model and keep state, all or nothing."""
        for one in made:
            one.flight.land(self.run.transport, self.run.statistics)
        bad = [(one.bucket, one.flight.result) for one in made if not is_finite(one.flight.result)]
        if self._anyone_bad(made, bool(bad)):
            for one in made:
                one.state.commit(False)
            raise non_finite_error("parameters", bad, self.run.step)
        for one in made:
            if one.index is not None:
                self.run.see(one.index, one.bucket, None, one.flight.result)
            cx, payload, state = self.run.context(one.rule), one.rule.payload, one.state
            result = payload.settle(cx, one.bucket, state["payload"], one.flight.result)
            base = payload.base(cx, one.bucket, state["payload"])
            value = result
            if not one.rule.exchange.returns_base:
                value = one.rule.outer.apply(cx, one.bucket, state["outer"], value, base)
            payload.write(cx, one.bucket, state["payload"], value, one.snapshot)
            state.commit(True)
        self.run.control.send()

    def _anyone_bad(self, made: list[Exchange], bad: bool) -> bool:
        """Whether a result is bad here or, where ranks get different results, on any rank."""
        apart = [one for one in made if _parts(one.rule)]
        agreements = {id(one.agreement): one.agreement for one in apart}
        for agreement in agreements.values():
            # Without one on its way it is made of what came back: a compressor may overflow, a checkpoint
            # keeps results only.
            pending = agreement or self.run.anyone(bad, "not finite")
            with self.run.statistics.waiting():
                received = pending.wait()
            assert isinstance(received, Tensor)
            bad = bad or bool(received.item())
        return bad


def _parts(rule: Rule) -> bool:
    """Whether ranks take part together and get different results."""
    return rule.exchange.collective and not rule.exchange.same_result


def _plain(rule: Rule) -> Rule:
    """How the buffers that go with a rule are averaged: in full precision, over the same exchange."""
    # When it runs is decided by the rule that it goes with.
    trigger = every(steps=max(1, rule.delay))
    return Rule(payload=parameters(), exchange=rule.exchange, trigger=trigger, delay=rule.delay)
