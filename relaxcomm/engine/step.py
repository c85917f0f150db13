"""The rules that run after the optimizer's step, on parameters or what they have moved."""

from __future__ import annotations

from collections.abc import Mapping

from relaxcomm.engine.run import Run
from relaxcomm.engine.step_exchanges import Exchange, StepExchanges
from relaxcomm.roles import Payload
from relaxcomm.tensors.buckets import Bucket


class Step:
    """Runs step rules in declared order; each reads what the one before wrote."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.rules = run.algorithm.at("step")
        self._changing = [
            (index, rule)
            for index, rule in self.rules
            if type(rule.payload).before_step is not Payload.before_step
        ]
        self.exchanges = StepExchanges(run)
        self.late: list[Exchange] = []

    def is_due(self) -> bool:
        """Whether anything is exchanged in this step, the same on all ranks where they keep step."""
        return any(
            self.run.firing(rule, bucket) for index, rule in self.rules for bucket in self.run.covered(index)
        )

    def lands(self) -> bool:
        """Whether a late result is applied or goes on in this step, the same on all ranks that keep step."""
        return any(late.due <= self.run.step or late.goes_on(self.run.step) for late in self.late)

    def apply_due(self) -> None:
        """Apply late results that are due, and let others go on."""
        is_due = [late.is_due(self.run.step) for late in self.late]  # asked once: it may arrive in between
        due = [late for late, now in zip(self.late, is_due, strict=True) if now]
        self.late = [late for late, now in zip(self.late, is_due, strict=True) if not now]
        self.exchanges.apply(due)
        for late in self.late:
            if late.goes_on(self.run.step):
                late.flight.advance(self.run.transport, self.run.statistics)

    def before(self) -> None:
        """Let payloads change the gradients just before the optimizer's step."""
        for index, rule in self._changing:
            for bucket in self.run.covered(index):
                if rule.is_active(self.run.step):
                    state = self.run.state[index, bucket.index]
                    rule.payload.before_step(self.run.context(rule), bucket, state["payload"])

    def mark(self, event: str, facts: Mapping[str, float]) -> None:
        """Tell the payloads of an event and run the rules that wait for it."""
        for index, rule in self.rules:
            for bucket in self.run.covered(index):
                state = self.run.state[index, bucket.index]
                rule.payload.event(self.run.context(rule), bucket, state["payload"], event, facts)
                state.commit(True)
        before, self.run.event = self.run.exchanged, event
        try:
            self.run.exchanged = False
            if self.is_due():
                self.exchange()
            if self.run.exchanged:
                self.run.statistics.synchronised()
                self.run.report()
        finally:
            self.run.event, self.run.exchanged = None, before

    def exchange(self) -> None:
        """Run the rules that fire in this step."""
        if not self.rules:
            return
        for index, rule in self.rules:
            fired = [bucket for bucket in self.run.covered(index) if self.run.firing(rule, bucket)]
            if fired and not (rule.delay == "unbounded" and self._out(index)):
                self._launch(index, fired)

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
        self.exchanges.apply(late)

    def meet(self) -> None:
        """Let every rank send as often as the one that sent most, so that all results can arrive.

        The model stays as it is: results are applied in the next step.
        """
        unbounded = [index for index, rule in self.rules if rule.delay == "unbounded"]
        if not unbounded:
            return
        ours = [self._sent(index) for index in unbounded]
        theirs = zip(*self.run.transport.gather_objects(ours), strict=True)
        for index, sent, most in zip(unbounded, ours, map(max, theirs), strict=True):
            if sent < most:
                self._land(index)
                self._launch(index, self.run.covered(index))
            self._land(index)

    def _land(self, index: int) -> None:
        for late in self._out(index):
            late.flight.land(self.run.transport, self.run.statistics)

    def _out(self, index: int) -> list[Exchange]:
        return [late for late in self.late if late.index == index]

    def _sent(self, index: int) -> int:
        """How often a rule has sent its buckets."""
        return max((self.run.rounds[index, bucket.index] for bucket in self.run.covered(index)), default=0)

    def _launch(self, index: int, buckets: list[Bucket]) -> None:
        self.run.check_parameters()
        self.run.exchanged = True
        # Two averages of the same buffers under way would correct them twice.
        made = self.exchanges.launch(index, buckets, buffers=not any(one.of_buffers for one in self.late))
        if self.run.algorithm.rules[index].delay:
            self.late += made
        else:
            self.exchanges.apply(made)
