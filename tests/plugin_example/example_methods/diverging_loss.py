"""A trigger that looks at the loss."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.plugin import (
    Agreement,
    Context,
    Observation,
    Rate,
    Share,
    State,
    TriggerFacts,
    VotingTrigger,
    frozen,
)


@frozen
class diverging_loss(VotingTrigger):
    """Exchange where some worker's loss goes beyond its own average: `l_i > factor L_(i-1)`.

    `L_i = (1 - a) L_(i-1) + a l_i` with `L_0 = l_0`, of what the program tells `engine.observe(loss=…)`.

    Args:
        factor: above which the loss diverges.
        smoothing: a, in (0, 1].
        agree: how many workers must want it.

    Example:
        >>> diverging_loss(factor=1.5)
        diverging_loss(factor=1.5)
    """

    factor: Rate
    smoothing: Share = 0.1
    agree: Agreement = "any"

    facts: ClassVar[TriggerFacts] = TriggerFacts(
        known="backward",
        event=None,
        period_steps=1,
        needs=frozenset(),
        looks_at=frozenset(),
        slots={"average": "mean"},
    )

    def init_vote(self) -> Mapping[str, Tensor]:
        return {"average": torch.full((), torch.nan, dtype=torch.float64)}

    def vote(self, cx: Context, state: State, observation: Observation) -> bool:
        loss, before = observation.value("loss"), state["average"].item()
        now = loss if before != before else (1 - self.smoothing) * before + self.smoothing * loss
        state["average"] = torch.tensor(now, dtype=torch.float64)
        return loss > self.factor * before
