"""The exchanges of parameters: how one is launched, and how its result is written to the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from relaxcomm.composition.algorithm import Rule
from relaxcomm.engine.finite import is_finite, non_finite_error, own_error, spoilt
from relaxcomm.engine.flights import Flight, Pipeline, land_all
from relaxcomm.engine.model import float_buffers
from relaxcomm.engine.run import Run
from relaxcomm.engine.slots import RuleState
from relaxcomm.errors import NonFiniteError
from relaxcomm.network.transport import Pending
from relaxcomm.primitives.payloads.parameters import parameters
from relaxcomm.primitives.triggers.every import every
from relaxcomm.primitives.triggers.every_step import every_step
from relaxcomm.tensors.buckets import Bucket, build_buckets

ASKED_BYTES = 64 << 20  # of parameters on their way to services at a time


@dataclass(frozen=True)
class Exchange:
    """An exchange on its way, applied in the step `due`, or when it arrives if that is infinity."""

    due: float
    index: int  # of the rule
    rule: Rule
    state: RuleState
    bucket: Bucket
    flight: Flight
    snapshot: Tensor | None
    of_buffers: bool = False  # the model's buffers, which go with the rule's parameters
    is_good: bool = True
    sent: int | None = None  # the step, if it is late and no checkpoint lies between
    mine: Tensor | None = None  # this rank's side, if the distance between replicas is taken
    agreement: Pending | None = None  # whether any rank put in NaN; on its way with the exchange

    def is_due(self, step: int) -> bool:
        """Whether the result is to be applied in `step`."""
        return self.due <= step or (math.isinf(self.due) and self.flight.has_arrived())

    def goes_on(self, step: int) -> bool:
        """Whether its next operation is issued in `step`: each has an equal share of the delay to hide in."""
        if self.sent is None or math.isinf(self.due):
            return False
        return self.flight.is_behind((step - self.sent) / (self.due - self.sent))


class StepExchanges:
    """Launches exchanges of step rules and applies what they bring, all or nothing."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def launch(self, index: int, buckets: Sequence[Bucket], *, buffers: bool = True) -> list[Exchange]:
        """Send what a rule covers, and buffers with it; without a delay the results are there at the end."""
        run, rule = self.run, self.run.algorithm.rules[index]
        # Each rank holds what it asks and what it is answered; those who take part together fill their link.
        most_bytes = math.inf if rule.exchange.collective else ASKED_BYTES
        pipeline = Pipeline(run.transport, run.statistics, most_bytes=most_bytes)
        round = run.rounds[index, buckets[0].index]
        measured = run.samples.wants_distance(rule)
        made = [
            self._launch(pipeline, index, rule, run.state[index, b.index], b, measured=measured)
            for b in buckets
        ]
        if buffers and rule.payload.averages_buffers and rule.exchange.collective:
            made += [
                self._launch(pipeline, index, plain, state, b, of_buffers=True, round=round)
                for plain, state, b in self._for_buffers(rule)
            ]
        if _parts(rule) and rule.compressor.keeps_finite:
            bad = not all(one.is_good for one in made)
            agreement = run.anyone(bad, "not finite")
            made = [replace(one, agreement=agreement) for one in made]
        if not rule.delay:
            pipeline.finish()
        return made

    def export(self, one: Exchange) -> list[Any]:
        """An exchange that is waited for, as a checkpoint keeps it."""
        assert one.snapshot is not None, "what is late has a snapshot"
        result = one.flight.land(self.run.transport, self.run.statistics).clone()
        return [one.due, one.index, one.of_buffers, one.bucket.index, result, one.snapshot.clone()]

    def restored(self, saved: list[Any]) -> Exchange:
        """An exchange that a checkpoint saved with its result."""
        due, index, of_buffers, unit, result, snapshot = saved
        flight, rule = Flight.landed(result), self.run.algorithm.rules[index]
        if of_buffers:
            plain, state, bucket = self._for_buffers(rule)[unit]
            return Exchange(due, index, plain, state, bucket, flight, snapshot, True)
        assert self.run.buckets is not None
        bucket, state = self.run.buckets[unit], self.run.state[index, unit]
        return Exchange(due, index, rule, state, bucket, flight, snapshot)

    def _for_buffers(self, rule: Rule) -> list[tuple[Rule, RuleState, Bucket]]:
        """The buckets of the model's buffers, with the rule that averages them and its state."""
        run, plain = self.run, _plain(rule)
        buckets = build_buckets(float_buffers(run.model), bucket_bytes=run.bucket_bytes)
        return [(plain, RuleState(plain, bucket, run.transport.membership), bucket) for bucket in buckets]

    def _launch(
        self,
        pipeline: Pipeline,
        index: int,
        rule: Rule,
        state: RuleState,
        bucket: Bucket,
        *,
        of_buffers: bool = False,
        round: int = 0,
        measured: bool = False,
    ) -> Exchange:
        late, alone = bool(rule.delay), not rule.exchange.collective
        cx = self.run.context(rule, round)
        tensor = rule.payload.read(
            cx, bucket, state["payload"], bucket.temporary() if late or alone else bucket.scratch()
        )
        is_good = (rule.exchange.same_result and not alone) or is_finite(tensor)
        if alone and not is_good:  # nobody waits for this rank, so it must not reach those who go on
            rank, so = self.run.transport.membership.rank, "nothing was sent, and no other rank has it"
            raise own_error(spoilt(bucket, tensor), rank, self.run.step, so)
        mine = self.run.samples.keep(rule, bucket, tensor) if measured else None
        program = (
            self.run.exchanging("buffers", rule, cx, state, tensor)
            if of_buffers
            else self.run.program(index, bucket, tensor)
        )
        flight = Flight(
            program,
            # Ranks that play clients or ask a server are not in the same step.
            step=self.run.step if self.run.algorithm.keeps_step else self.run.rounds.get((index, 0), 0),
            unit=bucket.index,
            operations=rule.compressor.rounds * rule.exchange.operations,
        )
        if late:
            flight.launch(self.run.transport, self.run.statistics)
        else:
            pipeline.launch(flight, tensor.nbytes)
        snapshot = bucket.gather(bucket.temporary()) if late else None
        due, sent = rule.due(self.run.step), self.run.step if late else None
        return Exchange(due, index, rule, state, bucket, flight, snapshot, of_buffers, is_good, sent, mine)

    def apply(self, made: Sequence[Exchange]) -> None:
        """Write results to the model and keep state, all or nothing."""
        land_all((one.flight for one in made), self.run.transport, self.run.statistics)
        bad = [one for one in made if not is_finite(one.flight.result)]
        if self._anyone_bad(made, bool(bad)):
            for one in made:
                one.state.commit(False)
            raise self._error(made, bad)
        for one in made:
            if one.sent is not None:
                self.run.statistics.latest["staleness_steps"] = self.run.step - one.sent
        self.run.samples.distance([(one.mine, one.flight.result) for one in made if one.mine is not None])
        settled, sums = self._measure(made)
        for place, one in enumerate(made):
            if not one.of_buffers:
                self.run.see(one.index, one.bucket, None, one.flight.result)
            cx, payload, state = self.run.context(one.rule), one.rule.payload, one.state
            if place in settled:
                result, cx = settled[place], replace(cx, measured=sums[one.index, one.due])
            else:
                result = payload.settle(cx, one.bucket, state["payload"], one.flight.result)
            base = payload.base(cx, one.bucket, state["payload"])
            value = result if base is None else result.to(base.dtype)
            if not one.rule.exchange.returns_base:
                value = one.rule.outer.apply(cx, one.bucket, state["outer"], value, base)
            payload.write(cx, one.bucket, state["payload"], value, one.snapshot)
            state.commit(True)
        self.run.control.send()

    def _error(self, made: Sequence[Exchange], bad: Sequence[Exchange]) -> NonFiniteError:
        """Who has put in what is not finite: nothing was written yet, so all still have what they sent."""
        came = [name for one in bad for name in spoilt(one.bucket, one.flight.result)]
        if not all(one.rule.exchange.collective for one in made):  # the others do not wait for a question
            rank, so = self.run.transport.membership.rank, "the exchange gave it back"
            return own_error(came, rank, self.run.step, so)
        put_in = [name for one in made for name in spoilt(one.bucket, self._sent(one))]
        return non_finite_error(self.run.transport, put_in, came, self.run.step)

    def _sent(self, one: Exchange) -> Tensor:
        """What this rank has put in, or the parameters that it was made of."""
        if one.snapshot is not None:
            return one.snapshot
        cx, payload = self.run.context(one.rule), one.state["payload"]
        return one.rule.payload.read(cx, one.bucket, payload, one.bucket.temporary())

    def _measure(self, made: Sequence[Exchange]) -> tuple[dict[int, Tensor], dict[tuple[int, float], Tensor]]:
        """What outers that measure want to know before anything is written.

        Returns: settled results by place in `made`, and the sums over the buckets of each rule's exchange.
        """
        settled: dict[int, Tensor] = {}
        sums: dict[tuple[int, float], Tensor] = {}
        for place, one in enumerate(made):
            if one.rule.outer.measures:
                cx, key = self.run.context(one.rule), (one.index, one.due)
                result = one.rule.payload.settle(cx, one.bucket, one.state["payload"], one.flight.result)
                numbers = one.rule.outer.measure(cx, one.bucket, result).double()
                settled[place] = result
                sums[key] = sums[key] + numbers if key in sums else numbers
        return settled, sums

    def _anyone_bad(self, made: Sequence[Exchange], bad: bool) -> bool:
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
    trigger = every(steps=max(1, rule.delay)) if isinstance(rule.delay, int) else every_step()
    return Rule(payload=parameters(), exchange=rule.exchange.plain, trigger=trigger, delay=rule.delay)
