"""When a rule exchanges, and how the workers agree on it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from relaxcomm.buckets import Bucket
from relaxcomm.counting import fewest
from relaxcomm.data.clients import RoundPlan
from relaxcomm.frozen import Share
from relaxcomm.protocol.base import Context, Primitive, State

Agreement: TypeAlias = Literal["any", "all", "majority"] | Share
"""How many workers must vote yes: a rule by name, or the least fraction of them."""


def agreed(agreement: Agreement, yes: float, voters: float) -> bool:
    """Whether `yes` of `voters` are enough."""
    if agreement == "all":
        return 0 < yes == voters
    if agreement == "majority":
        return 2 * yes > voters
    return yes > 0 if agreement == "any" else 0 < yes >= fewest(float(agreement), voters)


class Observation:
    """What a trigger may look at when it votes: this rank's gradients at the end of backward.

    Args:
        gradients: as they are in `.grad`, scaled if a GradScaler is used.
        scale: the GradScaler's scale, or 1.
    """

    def __init__(self, gradients: Sequence[Tensor], scale: float = 1.0) -> None:
        self.gradients, self.scale = gradients, scale

    @cached_property
    def squared_norm(self) -> float:
        """`||g||^2` over all parameters, unscaled; on a GPU the host waits for it."""
        if not self.gradients:
            return 0.0
        norms = torch.stack([n.double() for n in torch._foreach_norm(list(self.gradients))])
        return float(norms.square().sum()) / self.scale**2


class Trigger(Primitive):
    """When a rule exchanges."""

    role: ClassVar[str] = "trigger"
    known: ClassVar[Literal["start", "backward", "event"]] = "start"

    @property
    @abstractmethod
    def period_steps(self) -> int:
        """The least number of steps from one firing to the next."""

    def plan(self) -> RoundPlan | None:
        """What clients do between two exchanges, for triggers that wait for a round's end."""
        return None

    @property
    def needs(self) -> frozenset[str]:
        """Values that it looks at, which must exist before the first step."""
        return frozenset()

    @abstractmethod
    def fires(self, cx: Context, bucket: Bucket) -> bool:
        """Whether the rule exchanges `bucket` in this step; the same on all ranks by construction."""


class VotingTrigger(Trigger):
    """A trigger that looks at the gradients; in each step the workers vote and agree.

    The state that it keeps is of the whole model, made by `init_vote`. With a `vote_delay` of d steps a vote
    decides d steps after it was cast, so that the agreement has them to hide behind, and the first d steps
    exchange.
    """

    known: ClassVar[Literal["start", "backward", "event"]] = "backward"
    agree: Agreement
    vote_delay: int = 0

    @property
    def period_steps(self) -> int:
        return 1

    def fires(self, cx: Context, bucket: Bucket) -> bool:
        return cx.decided(self)

    def init_vote(self) -> Mapping[str, Tensor]:
        """The slots that this trigger keeps, at their first values; CPU tensors."""
        return {}

    def measured(self, state: State) -> tuple[Tensor, float] | None:
        """What was compared at the last vote, a scalar, and with which threshold; None if nothing was."""
        return None

    @abstractmethod
    def vote(self, cx: Context, state: State, observation: Observation) -> bool:
        """What this worker wants in this step."""
