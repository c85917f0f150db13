"""The rules that run after the optimizer's step, on parameters or what they have moved."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from torch import Tensor

from relaxcomm.network.operations import Label
from relaxcomm.roles import Payload
from relaxcomm.roles.returned import added
from relaxcomm.step.bound import Bound
from relaxcomm.step.flight import Pipeline, land_all
from relaxcomm.step.late_parameters import LateParameters
from relaxcomm.step.model_means import share_buffers
from relaxcomm.step.parameter_results import Sent, apply, ask_finite, is_looked_at, look_at
from relaxcomm.step.replica_norms import Comparison
from relaxcomm.step.transfer import Transfer

REQUESTED_BYTES = 64 << 20  # of parameters on their way to services at a time


class ParameterExchange:
    """Runs step rules in declared order; each reads what the one before wrote."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._plan, self._clock = bound.plan, bound.clock
        self._rules = bound.algorithm.at("step")
        self._changing = [
            index
            for index, rule in enumerate(bound.algorithm.rules)
            if type(rule.payload).before_step is not Payload.before_step
        ]
        self.acts_before = bool(self._changing) or any(rule.delay for _, rule in self._rules)
        """Whether anything is changed or applied just before an optimizer's step."""
        self.late = LateParameters(bound)
        """Results that come in later steps."""

    def fired(self) -> frozenset[int]:
        """The rules that exchange in this step; waits for votes that have not come."""
        step, context = self._clock.step, self._clock.context
        fired = self._plan.at("step", step, context)
        if self._plan.votes and (voting := self._plan.voting("step", step)):
            self._bound.votes.read(voting, step)
            fired |= self._plan.at("step", step, context, known="backward")
        return self._covering(fired)

    def hears(self, event: str) -> bool:
        """Whether a payload takes note of it when something happens."""
        return any(event in rule.payload.facts.hears for _, rule in self._rules)

    def waiting_for(self, event: str) -> frozenset[int]:
        """The rules that exchange when something happens."""
        with self._clock.during(event):
            return self._covering(self._plan.at("step", self._clock.step, self._clock.context, known="event"))

    def before_step(self) -> None:
        """Let payloads change the gradients just before the optimizer's step."""
        for index in self._changing:
            if self._bound.algorithm.rules[index].is_active(self._clock.step):
                for task in self._plan.tasks[index]:
                    payload, slots = task.rule.payload, self._bound.state.of(task)["payload"]
                    scale = self._bound.replica.scale.left(task.bucket)
                    cx = self._bound.context(index).at(gradient_scale=scale)
                    payload.before_step(cx, task.bucket, slots)
                    slots.commit(True)  # of the step, whatever becomes of an exchange after it

    def tell(self, event: str, facts: Mapping[str, float]) -> None:
        """Tell the payloads of something that has happened."""
        for index, rule in self._rules:
            for task in self._plan.tasks[index]:
                slots, cx = self._bound.state.of(task), self._bound.context(index)
                rule.payload.event(cx, task.bucket, slots["payload"], event, facts)
                slots.commit(True)

    def run(self, fired: Collection[int]) -> bool:
        """Exchange by some rules; whether anything was exchanged, or is on its way to others."""
        running = [
            index
            for index, rule in self._rules
            if index in fired and not (rule.delay == "unbounded" and self.late.of(index))
        ]
        launched = [self._launch(index) for index in running]
        return any(launched)

    def even_out(self) -> None:
        """Let every rank send as often as the one that sent most, so that all results can arrive.

        The model stays as it is: results are applied in the next step.
        """
        unbounded = [
            index
            for index, rule in self._rules
            if rule.delay == "unbounded"
            and rule.exchange.facts.returns != "base"  # whose results wait for no round
        ]
        if not unbounded:
            return
        ours = [self._num_sent(index) for index in unbounded]
        theirs = zip(*self._bound.world.gather(ours, "state_dict()"), strict=True)
        for index, sent, most in zip(unbounded, ours, map(max, theirs), strict=True):
            if sent < most:
                land_all(transfer.flight for transfer in self.late.of(index))
                self._launch(index)
            land_all(transfer.flight for transfer in self.late.of(index))

    def _covering(self, fired: Iterable[int]) -> frozenset[int]:
        """Those of some rules that cover anything."""
        return frozenset(index for index in fired if self._plan.tasks[index]) if fired else frozenset()

    def _num_sent(self, index: int) -> int:
        """How often a rule has sent its buckets."""
        return max((self._bound.state.rounds[task.key] for task in self._plan.tasks[index]), default=0)

    def _launch(self, index: int) -> bool:
        """Send what a rule covers, and buffers with it; without a delay, apply what comes.

        Returns: whether anything goes to other ranks, or they have met this one.
        """
        self._bound.replica.trained.check_frozen()
        self._bound.replica.trained.check()
        rule, tasks = self._bound.algorithm.rules[index], self._plan.tasks[index]
        # Two averages of the same buffers under way would correct them twice.
        out = any(one.task.of_buffers for one in self.late)
        buffers = () if out else self._bound.buffer_tasks(index)
        share_buffers(self._bound, [task.bucket for task in buffers])
        if not rule.exchange.facts.collective:
            # A round of which a part was sent, or that is counted and was not, is one others wait for.
            for task in (*tasks, *buffers):
                look_at(self._bound, task, task.bucket.gather(task.bucket.temporary()))
        pipeline = Pipeline(REQUESTED_BYTES)
        state = self._bound.state
        round = state.rounds[tasks[0].key]
        compared = self._bound.norms.comparison(rule, self._bound.votes.slots)
        made = [
            Transfer.of(self._bound, task, round=state.next_round(task), samples=state.next_samples(task))
            for task in tasks
        ]
        if rule.payload.measures:
            self._measure(made)
        for transfer in made:
            self._send(transfer, pipeline, compared)
        of_buffers = [Transfer.of(self._bound, task, round=round) for task in buffers]
        for transfer in of_buffers:
            self._send(transfer, pipeline)
        made += of_buffers
        sent = Sent(made, ask_finite(self._bound, made))
        was_met = False
        if rule.delay:
            self.late.add(sent)
        else:
            pipeline.finish()
            was_met = apply(self._bound, [sent])
        return was_met or any(transfer.flight.sends for transfer in made)

    def _measure(self, made: Iterable[Transfer]) -> None:
        """Let a payload know what it wants to of all that its rule covers, before it reads any."""
        total: Tensor | None = None
        for transfer in made:
            total = added(total, transfer.measure_own(), "measure", transfer.task.rule.payload)
        assert total is not None, "a rule that runs covers something"
        label = Label(self._bound.common_step, "what a payload measures")
        total = self._bound.world.over_shards(total, label)
        for transfer in made:
            transfer.know(total)

    def _send(self, transfer: Transfer, pipeline: Pipeline, compared: Comparison | None = None) -> None:
        bound, task, (round, _) = self._bound, transfer.task, transfer.counts
        rule, bucket = task.rule, task.bucket
        late, alone = bool(rule.delay), not rule.exchange.facts.collective
        out = bucket.temporary()
        tensor = transfer.read(out) if compared or is_looked_at(task) else transfer.read_or_leave(out)
        not_finite = look_at(bound, task, tensor)
        if compared:
            transfer.side = bound.norms.side(compared, rule, bucket, tensor)
        transfer.launch(
            transfer.exchange(tensor),
            # Ranks that play clients or ask a server are not in the same step.
            self._clock.step if self._plan.keeps_step else round + 1,
            pipeline if alone and not late else None,  # with others, all buckets go side by side
            snapshot=bucket.gather(bucket.temporary()) if late else None,
            not_finite=not_finite,
        )
