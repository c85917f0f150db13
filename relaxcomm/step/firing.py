"""What is known of the rules that exchange the gradients of a bucket together, worked out once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from relaxcomm.roles import VotingTrigger
from relaxcomm.step.bound import Bound
from relaxcomm.step.plan import Task
from relaxcomm.tensors.buckets import Bucket


@dataclass(frozen=True)
class Firing:
    """Rules that exchange a bucket in the same step, in their order.

    Args:
        tasks: the rules on the bucket.
        moves: whether any of them puts its result in the gradient's place.
        divided: whether the mean is taken where gradients are copied.
        guarded: whether a result of theirs must be finite, or it would spoil what is kept, or one rank alone.
        apart: whether ranks get different results.
        carries_flags: whether used-flags reach all ranks inside the messages.
        accumulates: whether a second backward in one step would add up to the same as one.
        sends_late: whether a result of theirs comes in a later step.
    """

    tasks: tuple[Task, ...]
    moves: bool
    divided: bool
    guarded: bool
    apart: bool
    carries_flags: bool
    accumulates: bool
    sends_late: bool


class Firings:
    """What each set of rules that fire together is to one bucket, made once.

    Args:
        bucket: of parameters.
        bound: the algorithm on a model.
        debug: whether NaN is looked for where nothing is kept that it would spoil, too.
    """

    def __init__(self, bucket: Bucket, bound: Bound, *, debug: bool) -> None:
        self._tasks = bound.plan.of_bucket(bucket, "backward")
        self._bucket, self._debug = bucket, debug
        self._state, self._controllers = bound.state, bound.controllers
        self._made: dict[frozenset[int], Firing] = {}

    def of(self, fired: Collection[int]) -> Firing:
        """The tasks of some rules, by their index, that cover the bucket."""
        key = frozenset(fired)
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._make(tuple(one for one in self._tasks if one.index in key))
        return made

    def _make(self, tasks: tuple[Task, ...]) -> Firing:
        moving = [task for task in tasks if task.moves_gradient]
        return Firing(
            tasks,
            moves=bool(moving),
            divided=len(tasks) == 1 and self._can_divide(tasks[0]),
            guarded=any(self._is_guarded(task) for task in tasks),
            apart=any(not task.rule.exchange.facts.same_result for task in tasks),
            carries_flags=all(task.carries_flags for task in moving),
            accumulates=all(_adds_up(task) for task in tasks),
            sends_late=any(task.rule.delay for task in tasks),
        )

    def _is_guarded(self, task: Task) -> bool:
        """Whether the result of a rule must be finite."""
        trigger = task.rule.trigger
        votes_late = isinstance(trigger, VotingTrigger) and trigger.vote_delay  # which tell of NaN afterwards
        looks = self._debug or votes_late or task.rule.delay or task.results_differ
        return bool(looks or not self._shows_nan(task))

    def _can_divide(self, task: Task) -> bool:
        """Whether the mean may be taken where the gradient is copied: nothing else looks at it before."""
        rule = task.rule
        alone = not rule.delay and task.moves_gradient and not self._controllers.watches(task.index)
        takes = rule.exchange.facts.takes_divided and rule.payload.passes_gradients
        return takes and alone and self._shows_nan(task)

    def _shows_nan(self, task: Task) -> bool:
        """Whether what is not finite comes to all ranks as it is, and spoils nothing that is kept."""
        lossless = task.rule.compressor.contraction(self._bucket.numel) == 0.0
        return lossless and not self._state.of(task).has_slots


def _adds_up(task: Task) -> bool:
    rule = task.rule
    is_sum = rule.compressor.facts.linear and rule.exchange.facts.returns != "robust mean"
    return is_sum and not rule.delay and task.moves_gradient and rule.payload.passes_gradients
