"""A trigger by the rounds of federated clients."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from relaxcomm.data.clients import RoundPlan
from relaxcomm.fields.frozen import Share, Steps, frozen
from relaxcomm.primitives.triggers.every_step import every_step
from relaxcomm.roles import Context, Trigger, TriggerFacts


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
        >>> from relaxcomm import Algorithm, Rule, rehearse
        >>> from relaxcomm.primitives import all_reduce, client_deltas, every_round
        >>> rule = Rule(trigger=every_round(epochs=2), payload=client_deltas(), exchange=all_reduce())
        >>> rehearse(Algorithm((rule,), name="rounds"), epochs=3).exchanges
        3

    Reference: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
        Data", AISTATS 2017.
    """

    epochs: Steps = 1
    fraction: Share = 1.0
    clients: Steps | None = None

    facts: ClassVar[TriggerFacts] = replace(every_step.facts, known="event", event="round")

    def round_plan(self) -> RoundPlan | None:
        return RoundPlan(self.epochs, self.fraction, self.clients)

    def fires(self, cx: Context) -> bool:
        return cx.event == "round"
