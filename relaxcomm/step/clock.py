"""The clock of an algorithm, and what its primitives may know at each moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Protocol

from relaxcomm.composition.rule import Rule
from relaxcomm.replica.replica import Replica
from relaxcomm.roles import Context, VotingTrigger
from relaxcomm.step.plan import Task
from relaxcomm.step.world import World


class ContextOf(Protocol):
    """Makes what the primitives of a rule may know now, see `Clock.context`."""

    def __call__(self, rule: Rule, task: Task | None = None, round: int = 0, samples: int = 1) -> Context: ...


class _Lasting:
    """What stays as it is of a rule's contexts: a look at its class takes as long as making one."""

    def __init__(self, rule: Rule, context: Context) -> None:
        self.rule, self.context = rule, context
        self.votes = rule.trigger if isinstance(rule.trigger, VotingTrigger) else None


class Clock:
    """Counts the steps of an algorithm, and makes the contexts of its primitives.

    Args:
        replica: whose learning rates and gradient scale they see.
        world: whose ranks and graph they see.
        values: what controllers write.
        decided: what the ranks have voted for in a step.
    """

    def __init__(
        self,
        replica: Replica,
        world: World,
        values: Mapping[str, float],
        decided: Callable[[VotingTrigger, int], bool | None],
    ) -> None:
        self._replica, self._world = replica, world
        self._values, self._decided = MappingProxyType(values), decided
        self._lasting: dict[int, _Lasting] = {}  # by the rule's identity
        self._event: str | None = None
        self.step = 0
        """Optimizer steps that are complete."""

    @contextmanager
    def during(self, event: str) -> Iterator[None]:
        """Something happens that no step belongs to."""
        self._event = event
        try:
            yield
        finally:
            self._event = None

    def context(self, rule: Rule, task: Task | None = None, round: int = 0, samples: int = 1) -> Context:
        """What the primitives of a rule may know now.

        Args:
            rule: whose.
            task: which they work on, if it is known.
            round: how often the rule has exchanged that before.
            samples: that this rank has trained on since.
        """
        known = self._lasting.get(id(rule))
        if known is None:
            known = self._lasting[id(rule)] = _Lasting(rule, self._lasting_context(rule))
        return known.context.at(
            step=self.step,
            gradient_scale=self._replica.scale.tensor,
            event=self._event,
            round=round,
            samples=samples,
            decided=None if known.votes is None else self._decided(known.votes, self.step),
            layout=None if task is None else task.bucket.layout,
            bucket_part=() if task is None else (task.bucket.index,),
        )

    def _lasting_context(self, rule: Rule) -> Context:
        return Context(
            step=self.step,
            start=rule.active[0],
            membership=self._world.membership,
            learning_rate=self._replica.learning_rate,
            optimizer_state=self._replica.optimizer_state,
            values=self._values,
            topology=self._world.topology,
            exact=rule.payload.facts.site == "step",
            record=self._world.statistics.record,
        )
