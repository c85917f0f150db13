"""A trigger that votes on how much the gradients' size has changed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Index, Share, Steps, Threshold, frozen
from relaxcomm.primitives.triggers.every_step import every_step
from relaxcomm.roles import Agreement, Context, Observation, State, TriggerFacts, VotingTrigger


@frozen
class relative_gradient_change(VotingTrigger):
    """Exchange when the gradients' size changes: `|E_i - E_(i-1)| / E_(i-1) >= threshold`.

    `E_i = (1 - a) E_(i-1) + a ||g_i||^2` with `E_0 = ||g_0||^2`, the squared norm of this worker's
    gradients over all parameters, as rules that do not vote have left them. The first `window_steps` steps
    always exchange, and so does any step that follows `E = 0` with a gradient. The workers' votes are agreed
    on in each step; rules with equal triggers share one.

    The change is `a |r - 1|` with `r = ||g_i||^2 / E_(i-1)`: a step exchanges when the squared norm is at
    least `1 + threshold / a` times its average (2.6 times by SelSync's defaults), or, where
    `a >= threshold`, at most `1 - threshold / a` times.

    Args:
        threshold: the least relative change that exchanges; 0 exchanges in every step.
        window_steps: number of first steps that always exchange, at least 1.
        smoothing: a, in (0, 1]; a threshold means something else with each.
        agree: "any" worker's vote is enough, "all" are needed, a "majority", or the least fraction
            of the workers, in (0, 1].
        vote_delay: how many steps later the votes of a step decide; the agreement, one round trip a step,
            then hides behind so many steps.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import all_reduce, parameters, relative_gradient_change
        >>> trigger = relative_gradient_change(threshold=0.25, window_steps=1, smoothing=0.5)
        >>> rule = Rule(trigger=trigger, payload=parameters(), exchange=all_reduce())
        >>> trajectory(rule, [[1.0, 3.0], [1.0, 3.0], [2.0, 3.0]])
        tensor([[2.0000, 2.0000],
                [3.0000, 5.0000],
                [6.5000, 6.5000]])

    Reference: Tyagi and Swany, "Accelerating Distributed ML Training via Selective Synchronization",
        IEEE CLUSTER 2023.

    Differs from the paper: smoothing is 0.16, its N / 100 at its 16 workers, for every number of workers.
        From its code: the norm is that of all gradients, not a sum over layers, and a step after a zero
        denominator is defined.
    """

    threshold: Threshold
    window_steps: Steps = 25
    smoothing: Share = 0.16
    agree: Agreement = "any"
    vote_delay: Index = 0

    facts: ClassVar[TriggerFacts] = replace(
        every_step.facts, known="backward", slots={"votes": "mean", "average": "mean", "change": "mean"}
    )

    def init_vote(self) -> Mapping[str, Tensor]:
        return {
            "votes": torch.zeros((), dtype=torch.int64),
            "average": torch.zeros((), dtype=torch.float64),
            "change": torch.zeros((), dtype=torch.float64),
        }

    def measured(self, state: State) -> tuple[Tensor, float]:
        return state["change"], self.threshold

    def vote(self, cx: Context, state: State, observation: Observation) -> bool:
        square, before = observation.squared_norm, state["average"].item()
        votes = int(state["votes"].item())
        now = (1 - self.smoothing) * before + self.smoothing * square if votes else square
        change = abs(now - before) / before if before else math.inf if now else 0.0
        state["votes"] = torch.tensor(votes + 1)
        state["average"] = torch.tensor(now, dtype=torch.float64)
        state["change"] = torch.tensor(change, dtype=torch.float64)
        return votes < self.window_steps or change >= self.threshold
