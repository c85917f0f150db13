"""The points from which rules that begin later in a run move the parameters."""

from __future__ import annotations

from collections.abc import Collection
from itertools import product

from relaxcomm.composition.legality.later_rules import gives_base
from relaxcomm.step.bound import Bound
from relaxcomm.step.plan import Task


class Bases:
    """Has rules that are not active yet go on from where others bring the replicas together.

    What their payloads keep is made when the run begins. By the time they are active, movement since then
    would be all that was trained, and to move by it once more would undo or overdo it.
    """

    def __init__(self, bound: Bound) -> None:
        self._bound, self._rules = bound, bound.algorithm.rules
        based = [
            index for index, rule in enumerate(self._rules) if rule.payload.facts.has_base and rule.active[0]
        ]
        self._pairs = [
            (index, other)
            for index, other in product(based, range(len(self._rules)))
            if gives_base(self._rules, self._rules[other], self._rules[index])
        ]

    def follow(self, ran: Collection[int]) -> None:
        """A step has ended.

        Args:
            ran: the step rules that exchanged in it.
        """
        step = self._bound.clock.step
        for index, other in self._pairs:
            begins = self._rules[index].active[0]
            if step <= begins and self._is_met(other, step, ran, begins):
                for task in self._shared(index, other):
                    slots = self._bound.state.of(task)["payload"]
                    slots.update(task.rule.payload.init(task.bucket))
                    slots.commit(True)

    def _is_met(self, other: int, step: int, ran: Collection[int], begins: int) -> bool:
        """Whether the replicas are equal by a rule, and will not be so later: a copy takes its time."""
        rule = self._rules[other]
        if rule.payload.facts.site == "step":
            return other in ran
        return rule.is_active(step - 1) and (step == begins or not rule.is_active(step))

    def _shared(self, index: int, other: int) -> list[Task]:
        """What a rule does in buckets that another covers, too."""
        tasks = self._bound.plan.tasks
        covered = {task.bucket.index for task in tasks[other]}
        return [task for task in tasks[index] if task.bucket.index in covered]
