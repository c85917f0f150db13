"""Triggers: when a rule exchanges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from relaxcomm.data.clients import RoundPlan
from relaxcomm.errors import CompositionError
from relaxcomm.fields.frozen import Index, Share, Steps, Threshold, frozen
from relaxcomm.roles import Agreement, Context, Observation, State, Trigger, VotingTrigger
from relaxcomm.tensors.buckets import Bucket


@frozen
class every_step(Trigger):
    """Exchange in every step.

    Example:
        >>> every_step()
        every_step()
    """

    @property
    def period_steps(self) -> int:
        return 1

    def fires(self, cx: Context, bucket: Bucket) -> bool:
        return True


@frozen
class every(Trigger):
    """Exchange after each `steps` local steps, counted from the first step in which the rule is active.

    Fires at step t when `(t - start + 1) mod steps = 0`.

    Args:
        steps: local steps from one exchange to the next, in optimizer steps, at least 1.

    Example:
        >>> every(steps=16)
        every(steps=16)

    Reference: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019.
    """

    steps: Steps

    @property
    def period_steps(self) -> int:
        return self.steps

    def fires(self, cx: Context, bucket: Bucket) -> bool:
        return (cx.step - cx.start + 1) % self.steps == 0


@frozen
class relative_gradient_change(VotingTrigger):
    """Exchange when the gradients' size changes: `|E_i - E_(i-1)| / E_(i-1) >= threshold`.

    `E_i = (1 - a) E_(i-1) + a ||g_i||^2` with `E_0 = ||g_0||^2`, the squared norm of this worker's
    gradients over all parameters. The first `window_steps` steps always exchange, and so does any
    step that follows `E = 0` with a gradient. The workers' votes are agreed on in each step.

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
        >>> relative_gradient_change(threshold=0.25)
        relative_gradient_change(threshold=0.25)

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


@frozen
class while_below(Trigger):
    """Follow another trigger as long as a value that a controller writes is below a limit.

    Args:
        trigger: the other one; not one that votes.
        value: name of the value, such as "batch_size".
        limit: the least value at which nothing is exchanged any more.

    Raises: CompositionError for a trigger that votes.

    Example:
        >>> while_below(trigger=every(steps=16), value="batch_size", limit=512)
        while_below(trigger=every(steps=16), value='batch_size', limit=512.0)
    """

    trigger: Trigger
    value: str
    limit: float

    def __post_init__(self) -> None:
        if self.trigger.known != "start":
            raise CompositionError(
                f"while_below cannot follow {self.trigger!r}, whose answer is known after backward only; "
                "choose every(steps=…) or every_step()"
            )

    @property
    def period_steps(self) -> int:
        return self.trigger.period_steps

    @property
    def needs(self) -> frozenset[str]:
        return self.trigger.needs | {self.value}

    def fires(self, cx: Context, bucket: Bucket) -> bool:
        return cx.values[self.value] < self.limit and self.trigger.fires(cx, bucket)


@frozen
class every_round(Trigger):
    """Exchange when all clients of a round have trained.

    `engine.loader` then gives a round's batches in one iteration: the sampled clients that this worker
    plays, one after the other.

    Args:
        epochs: local epochs of each client in a round.
        fraction: of the clients that are sampled in a round, in (0, 1]; at least one.
        clients: number of clients; None for one a worker.

    Example:
        >>> every_round(epochs=5, clients=20, fraction=0.2)
        every_round(epochs=5, fraction=0.2, clients=20)

    Reference: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
        Data", AISTATS 2017.
    """

    epochs: Steps = 1
    fraction: Share = 1.0
    clients: Steps | None = None

    known: ClassVar[Literal["start", "backward", "event"]] = "event"

    @property
    def period_steps(self) -> int:
        return 1

    def plan(self) -> RoundPlan | None:
        return RoundPlan(self.epochs, self.fraction, self.clients)

    def fires(self, cx: Context, bucket: Bucket) -> bool:
        return cx.event == "round"
