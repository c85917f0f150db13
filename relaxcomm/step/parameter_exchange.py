"""The rules that run after the optimizer's step, on parameters or what they have moved."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from relaxcomm.roles import Payload
from relaxcomm.step.bound import Bound
from relaxcomm.step.flight import Pipeline, land_all
from relaxcomm.step.parameter_results import Sent, apply, arrived, ask_finite, is_looked_at, look_at
from relaxcomm.step.plan import Task, TaskKey
from relaxcomm.step.shard_means import share_buffers
from relaxcomm.step.transfer import Transfer

REQUESTED_BYTES = 64 << 20  # of parameters on their way to services at a time


class ParameterExchange:
    """Runs step rules in declared order; each reads what the one before wrote.

    Args:
        bound: the algorithm on a model.
    """

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._plan, self._clock = bound.plan, bound.clock
        self._rules = bound.algorithm.at("step")
        self._changing = [
            index for index, rule in self._rules if type(rule.payload).before_step is not Payload.before_step
        ]
        self.acts_before = bool(self._changing) or any(rule.delay for _, rule in self._rules)
        """Whether anything is changed or applied just before an optimizer's step."""
        self.late: list[Sent] = []

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
        return any(
            type(rule.payload).event is not Payload.event
            and (rule.payload.facts.hears is None or event in rule.payload.facts.hears)
            for _, rule in self._rules
        )

    def waiting_for(self, event: str) -> frozenset[int]:
        """The rules that exchange when something happens."""
        with self._clock.during(event):
            return self._covering(self._plan.at("step", self._clock.step, self._clock.context, known="event"))

    def lands(self) -> bool:
        """Whether a late result is applied or goes on in this step, the same on all ranks that keep step."""
        step = self._clock.step
        return any(one.due <= step or one.goes_on(step) for one in self._under_way())

    def apply_due(self) -> None:
        """Apply late results that are due, and let others go on."""
        if not self.late:
            return
        step, due, left, there = self._clock.step, [], [], arrived(self._bound, self.late)
        for sent in self.late:
            now, waiting = sent.split(step, there)
            due += [now] if now.transfers else []
            left += [waiting] if waiting.transfers else []
        self.late = left
        apply(self._bound, due)
        for transfer in self._under_way():
            if transfer.goes_on(step):
                transfer.flight.advance()

    def overtake(self) -> None:
        """Other weights were loaded: what is on its way goes on, as others wait for it, and moves none.

        Every rank that loads does so before it applies anything, and one that does not keeps what comes.
        """
        for transfer in self._under_way():
            transfer.is_overtaken = transfer.task.rule.payload.facts.is_model

    def before_step(self) -> None:
        """Let payloads change the gradients just before the optimizer's step."""
        for index in self._changing:
            if self._bound.algorithm.rules[index].is_active(self._clock.step):
                for task in self._plan.tasks[index]:
                    payload, slots = task.rule.payload, self._bound.state.of(task)["payload"]
                    scale = self._bound.replica.scale_left(task.bucket)
                    cx = self._bound.context(index).at(gradient_scale=scale)
                    payload.before_step(cx, task.bucket, slots)

    def tell(self, event: str, facts: Mapping[str, float]) -> None:
        """Tell the payloads of something that has happened."""
        for index, rule in self._rules:
            for task in self._plan.tasks[index]:
                slots, cx = self._bound.state.of(task), self._bound.context(index)
                rule.payload.event(cx, task.bucket, slots["payload"], event, facts)
                slots.commit(True)

    def run(self, fired: Collection[int]) -> bool:
        """Exchange by some rules; whether anything was exchanged."""
        running = [
            index
            for index, rule in self._rules
            if index in fired and not (rule.delay == "unbounded" and self._out(index))
        ]
        for index in running:
            self._launch(index)
        return bool(running)

    def drain(self) -> None:
        """Apply everything that is on its way."""
        late, self.late = self.late, []
        apply(self._bound, late)

    def meet(self) -> None:
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
                land_all(transfer.flight for transfer in self._out(index))
                self._launch(index)
            land_all(transfer.flight for transfer in self._out(index))

    def asked(self) -> dict[TaskKey, Transfer]:
        """What is on its way to services that hold the model, and from them."""
        return {
            transfer.task.key: transfer
            for transfer in self._under_way()
            if transfer.task.rule.exchange.facts.returns == "base"
        }

    def export(self, is_loaded: bool) -> list[list[Any]]:
        """Late results as a checkpoint keeps them; waits for them.

        Args:
            is_loaded: whether they are of other weights than those that are saved with them.
        """
        land_all(transfer.flight for transfer in self._under_way())
        return [_exported(transfer, is_loaded) for transfer in self._under_way()]

    def restore(self, saved: Iterable[list[Any]]) -> None:
        """Put back what a checkpoint has saved."""
        found = []
        for due, index, of_buffers, unit, result, snapshot, *counts in saved:
            tasks = self._buffer_tasks(index) if of_buffers else self._plan.tasks[index]
            task = next(task for task in tasks if task.bucket.index == unit)
            made = Transfer.landed(
                self._bound, task, due=due, counts=counts, result=result, snapshot=snapshot
            )
            found.append(Sent([made]))
        self.late = found

    def _covering(self, fired: Iterable[int]) -> frozenset[int]:
        """Those of some rules that cover anything."""
        return frozenset(index for index in fired if self._plan.tasks[index]) if fired else frozenset()

    def _under_way(self) -> Iterator[Transfer]:
        return (transfer for sent in self.late for transfer in sent.transfers)

    def _out(self, index: int) -> list[Transfer]:
        return [one for one in self._under_way() if one.task.index == index]

    def _num_sent(self, index: int) -> int:
        """How often a rule has sent its buckets."""
        return max((self._bound.state.rounds[task.key] for task in self._plan.tasks[index]), default=0)

    def _buffer_tasks(self, index: int) -> Sequence[Task]:
        replica = self._bound.replica
        return self._plan.for_buffers(index, replica.buffers(), replica.bucket_bytes)

    def _launch(self, index: int) -> None:
        """Send what a rule covers, and buffers with it; without a delay, apply what comes."""
        self._bound.replica.check_frozen()
        self._bound.replica.check_parameters()
        rule, tasks = self._bound.algorithm.rules[index], self._plan.tasks[index]
        # Two averages of the same buffers under way would correct them twice.
        out = any(one.task.of_buffers for one in self._under_way())
        buffers = () if out else self._buffer_tasks(index)
        share_buffers(self._bound, [task.bucket for task in buffers])
        if not rule.exchange.facts.collective:
            # A round of which a part was sent, or that is counted and was not, is one others wait for.
            for task in (*tasks, *buffers):
                look_at(self._bound, task, task.bucket.gather(task.bucket.temporary()))
        # Each rank holds what it asks and what it is answered; those who take part together fill their link.
        pipeline = Pipeline(math.inf if rule.exchange.facts.collective else REQUESTED_BYTES)
        state = self._bound.state
        round = state.rounds[tasks[0].key]
        measured = self._bound.norms.wants_distance(rule, self._bound.votes.slots)
        made = [
            self._send(task, state.next_round(task), state.next_samples(task), pipeline, measured=measured)
            for task in tasks
        ]
        made += [self._send(task, round, 1, pipeline, measured=False) for task in buffers]
        sent = Sent(made, ask_finite(self._bound, made))
        if rule.delay:
            self.late.append(sent)
        else:
            pipeline.finish()
            apply(self._bound, [sent])

    def _send(self, task: Task, round: int, samples: int, pipeline: Pipeline, *, measured: bool) -> Transfer:
        bound, rule, bucket = self._bound, task.rule, task.bucket
        late, alone = bool(rule.delay), not rule.exchange.facts.collective
        transfer = Transfer.of(bound, task, round=round, samples=samples)
        keeps = late or alone or bucket.device.type == "cpu"  # where an outer may keep the memory
        out = bucket.temporary() if keeps else bucket.scratch()
        tensor = transfer.read(out) if measured or is_looked_at(task) else transfer.read_or_leave(out)
        not_finite = look_at(bound, task, tensor)
        if measured:
            transfer.side = bound.norms.side(rule, bucket, tensor)
        transfer.launch(
            transfer.exchange(tensor),
            # Ranks that play clients or ask a server are not in the same step.
            self._clock.step if self._plan.keeps_step else round + 1,
            None if late else pipeline,
            snapshot=bucket.gather(bucket.temporary()) if late else None,
            not_finite=not_finite,
        )
        return transfer


def _exported(late: Transfer, is_loaded: bool) -> list[Any]:
    """As `restore` takes it; waits for the result."""
    assert late.snapshot is not None, "what is late has a snapshot"
    result, task = late.result.clone(), late.task
    place = late.due, task.index, task.of_buffers, task.bucket.index
    is_overtaken = late.is_overtaken or (is_loaded and task.rule.payload.facts.is_model)
    snapshot = result if is_overtaken else late.snapshot  # a difference of nothing
    return [*place, result, snapshot.clone(), *late.counts]
