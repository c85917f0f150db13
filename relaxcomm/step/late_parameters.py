"""Results of exchanges of parameters that come in a later step than they were sent in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from relaxcomm.step.bound import Bound
from relaxcomm.step.flight import land_all
from relaxcomm.step.parameter_results import Sent, apply, arrived
from relaxcomm.step.plan import TaskKey
from relaxcomm.step.transfer import Transfer


class LateParameters:
    """Holds what is on its way from step to step, and applies it when it is due or has come."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._sent: list[Sent] = []

    def __bool__(self) -> bool:
        return bool(self._sent)

    def __iter__(self) -> Iterator[Transfer]:
        return (transfer for sent in self._sent for transfer in sent.transfers)

    def of(self, index: int) -> list[Transfer]:
        """Those of a rule, by its index."""
        return [transfer for transfer in self if transfer.task.index == index]

    def add(self, sent: Sent) -> None:
        """These were sent now."""
        self._sent.append(sent)

    def lands(self) -> bool:
        """Whether one is applied or goes on in this step, the same on all ranks that keep step."""
        step = self._bound.clock.step
        return any(transfer.due <= step or transfer.goes_on(step) for transfer in self)

    def apply_due(self) -> bool:
        """Apply those that are due, and let others go on; whether others have met this rank, see `apply`."""
        if not self._sent:
            return False
        step, due, left, there = self._bound.clock.step, [], [], arrived(self._bound, self._sent)
        for sent in self._sent:
            now, waiting = sent.split(step, there)
            due += [now] if now.transfers else []
            left += [waiting] if waiting.transfers else []
        self._sent = left
        was_met = apply(self._bound, due)
        for transfer in self:
            if transfer.goes_on(step):
                transfer.flight.advance()
        return was_met

    def drain(self) -> None:
        """Apply all."""
        sent, self._sent = self._sent, []
        apply(self._bound, sent)

    def forget(self) -> None:
        """Nobody waits for them any more."""
        self._sent = []

    def overtake(self) -> None:
        """Other weights were loaded: what is on its way goes on, as others wait for it, and moves none.

        Every rank that loads does so before it applies anything, and one that does not keeps what comes.
        """
        for transfer in self:
            transfer.is_overtaken = transfer.task.rule.payload.facts.is_model

    def asked(self) -> dict[TaskKey, Transfer]:
        """What is on its way to services that hold the model, and from them."""
        return {
            transfer.task.key: transfer
            for transfer in self
            if transfer.task.rule.exchange.facts.returns == "base"
        }

    def export(self, is_loaded: bool) -> list[list[Any]]:
        """As a checkpoint keeps them, maybe beside loaded weights, which they are not of; waits for them."""
        land_all(transfer.flight for transfer in self)
        return [_exported(transfer, is_loaded) for transfer in self]

    def restore(self, saved: Iterable[Sequence[Any]]) -> None:
        """Put back what a checkpoint has saved."""
        found = []
        for due, index, of_buffers, unit, result, snapshot, *counts in saved:
            tasks = self._bound.buffer_tasks(index) if of_buffers else self._bound.plan.tasks[index]
            task = next(task for task in tasks if task.bucket.index == unit)
            made = Transfer.landed(
                self._bound, task, due=due, counts=counts, result=result, snapshot=snapshot
            )
            found.append(Sent([made]))
        self._sent = found


def _exported(late: Transfer, is_loaded: bool) -> list[Any]:
    """As `restore` takes it, on the host; waits for the result."""
    assert late.snapshot is not None, "what is late has a snapshot"
    result, task = late.result.to("cpu", copy=True), late.task
    place = late.due, task.index, task.of_buffers, task.bucket.index
    is_overtaken = late.is_overtaken or (is_loaded and task.rule.payload.facts.is_model)
    snapshot = result if is_overtaken else late.snapshot  # a difference of nothing
    return [*place, result, snapshot.to("cpu", copy=True), *late.counts]
