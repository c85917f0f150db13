"""When a rule exchanges, and how the workers agree on it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import ClassVar, Literal, TypeAlias

from torch import Tensor

from relaxcomm.data.clients import RoundPlan
from relaxcomm.errors import UsageError
from relaxcomm.fields.frozen import Share, Steps, stated
from relaxcomm.fields.looked_at import Looks, one_of
from relaxcomm.fields.rounding import fewest
from relaxcomm.roles.carried import Slots
from relaxcomm.roles.context import Context, Primitive, State
from relaxcomm.tensors.norms import squared_norm

Agreement: TypeAlias = Literal["any", "all", "majority"] | Share
"""How many workers must vote yes: a rule by name, or the least fraction of them."""


def agreed(agreement: Agreement, yes: float, voters: float) -> bool:
    """Whether `yes` of `voters` are enough."""
    if agreement == "all":
        return 0 < yes == voters
    if agreement == "majority":
        return 2 * yes > voters
    return yes > 0 if agreement == "any" else 0 < yes >= fewest(float(agreement), voters)


REPLICA_DISTANCE = "replica_distance"


class Observation:
    """What a trigger may look at when it votes: this rank's gradients at the end of backward, and numbers.

    Args:
        gradients: as they are in `.grad`, scaled if a GradScaler is used; of a sharded model this rank's
            shards, while `squared_norm` is that of the whole.
        scale: the GradScaler's scale, or 1.
        latest: the latest value of each number, by name.
        over_shards: adds a squared norm up over the ranks that hold a replica together.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import Observation
        >>> seen = Observation([torch.tensor([6.0, 8.0])], scale=2.0, latest={"loss": torch.tensor(0.5)})
        >>> seen.squared_norm, seen.value("loss"), seen.value("accuracy", default=0.0)
        (25.0, 0.5, 0.0)
    """

    def __init__(
        self,
        gradients: Sequence[Tensor],
        scale: float = 1.0,
        latest: Mapping[str, float | Tensor] = MappingProxyType({}),
        over_shards: Callable[[float], float] = float,
    ) -> None:
        self.gradients, self.scale, self._latest, self._over_shards = gradients, scale, latest, over_shards

    def value(self, name: str, default: float | None = None) -> float:
        """The latest value that this rank has of a number; on a GPU the host waits for it.

        Args:
            name: what `engine.observe(loss=loss)` called it; or "replica_distance", how far this rank's
                parameters were from the combined ones at the last exchange, for triggers that declare to look
                at it.
            default: what there is before the first value; None to refuse that.

        Raises: UsageError without a value and a default.
        """
        if name in self._latest:
            return float(self._latest[name])
        if default is not None:
            return default
        how = (
            "it is known from the first exchange on, so give a default"
            if name == REPLICA_DISTANCE
            else f"call engine.observe({name}=…) before each backward"
        )
        raise UsageError(f"a trigger looks at {name!r}, of which nothing was observed; {how}")

    @cached_property
    def squared_norm(self) -> float:
        """`||g||^2` over all parameters, unscaled; on a GPU the host waits for it."""
        return self._over_shards(squared_norm(self.gradients)) / self.scale**2


@stated
class TriggerFacts:
    """What a trigger declares.

    Args:
        known: whether it fires is known at the "start" of a step, after the workers' vote at the end of
            "backward", or at an "event".
        event: the event that it waits for, such as "round", or None.
        period_steps: the least number of steps from one firing to the next.
        needs: values that it looks at: `batch_size`, or what a controller gives in `init_values`.
        looks_at: numbers that the engine takes for its vote, such as "replica_distance".
        slots: what it keeps, and what becomes of each slot with another number of ranks, see `Carried`.

    Example:
        >>> from relaxcomm.primitives import every, while_below
        >>> facts = while_below(trigger=every(steps=16), value="batch_size", limit=512).facts
        >>> facts.known, facts.period_steps, sorted(facts.needs)
        ('start', 16, ['batch_size'])
    """

    known: Literal["start", "backward", "event"]
    event: str | None
    period_steps: Steps
    needs: frozenset[str]
    looks_at: frozenset[str]
    slots: Slots


class Trigger(Primitive):
    """When a rule exchanges.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.plugin import Trigger, frozen
        >>> from relaxcomm.primitives import all_reduce, every_step, parameters
        >>> @frozen
        ... class after_doubling(Trigger):
        ...     facts = every_step.facts
        ...     def fires(self, cx):
        ...         return (cx.step - cx.start + 1).bit_count() == 1
        >>> rule = Rule(trigger=after_doubling(), payload=parameters(), exchange=all_reduce())
        >>> [step for step, (a, b) in enumerate(trajectory(rule, [[1.0, 3.0]] * 9)) if a == b]
        [0, 1, 3, 7]
    """

    role: ClassVar[str] = "trigger"
    declares: ClassVar[type[TriggerFacts]] = TriggerFacts
    looks: ClassVar[Looks] = {
        **Primitive.looks,
        "round_plan": one_of(RoundPlan | None, "return a RoundPlan, or None where no clients are played"),
    }

    @property
    @abstractmethod
    def facts(self) -> TriggerFacts:
        """What it declares."""

    def round_plan(self) -> RoundPlan | None:
        """What clients do between two exchanges, for triggers that wait for a round's end."""
        return None

    @abstractmethod
    def fires(self, cx: Context) -> bool:
        """Whether the rule exchanges in this step; the same on all ranks by construction."""


class VotingTrigger(Trigger):
    """A trigger that looks at the gradients; in each step the workers vote and agree.

    It may look at numbers, too: at what the training program tells `engine.observe`, and at those that the
    engine takes where its facts name them in `looks_at`. The state that it keeps is of the whole model, made
    by `init_vote`. With a `vote_delay` of d steps a vote decides d steps after it was cast, so that the
    agreement has them to hide behind, and the first d steps exchange.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.plugin import Agreement, VotingTrigger, frozen
        >>> from relaxcomm.primitives import all_reduce, parameters, relative_gradient_change
        >>> @frozen
        ... class large_gradients(VotingTrigger):
        ...     bound: float
        ...     agree: Agreement = "any"
        ...     facts = relative_gradient_change.facts
        ...     def vote(self, cx, state, observation):
        ...         return observation.squared_norm >= self.bound**2
        >>> rule = Rule(trigger=large_gradients(bound=5.0), payload=parameters(), exchange=all_reduce())
        >>> trajectory(rule, [[1.0, 3.0], [1.0, 7.0]])
        tensor([[1., 3.],
                [6., 6.]])
    """

    agree: Agreement
    vote_delay: int = 0

    def fires(self, cx: Context) -> bool:
        assert cx.decided is not None, f"{self!r} is asked before the ranks have voted"
        return cx.decided

    def init_vote(self) -> Mapping[str, Tensor]:
        """The slots that this trigger keeps, at their first values; CPU tensors."""
        return {}

    def measured(self, state: State) -> tuple[Tensor, float] | None:
        """What was compared at the last vote, a scalar, and with which threshold; None if nothing was."""
        return None

    @abstractmethod
    def vote(self, cx: Context, state: State, observation: Observation) -> bool:
        """What this worker wants in this step."""
