"""How far workers are from a center that springs pull them to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Share, frozen
from relaxcomm.primitives.payloads.deltas import deltas
from relaxcomm.primitives.payloads.parameters import write_parameters
from relaxcomm.roles import Context, Payload, PayloadFacts, State
from relaxcomm.tensors.buckets import Bucket

CENTER = "center"


@frozen
class elastic_difference(Payload):
    """How far the center is from the parameters, `center - p`; a spring pulls the parameters towards it.

    `p <- p - beta / N (p - center)`, with the center before the outer moves it: with `sgd(lr=beta)` by
    `center <- center + beta (mean(p) - center)`. What a sparsifier leaves out is told anew in the next
    exchange, so take `ef21` around one: `error_feedback` would add it up. A late spring pulls by where p was
    when it was sent, as it moves the center, and what p has moved since then stays.

    Args:
        beta: strength of the N springs together, in (0, 1].

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import all_reduce, elastic_difference, sgd
        >>> rule = Rule(payload=elastic_difference(beta=0.5), exchange=all_reduce(), outer=sgd(lr=0.5))
        >>> trajectory(rule, [[1.0, 3.0], [0.0, 0.0]])
        tensor([[0.7500, 2.2500],
                [0.8125, 1.9375]])

    Reference: Zhang, Choromanska and LeCun, "Deep Learning with Elastic Averaging SGD", NIPS 2015.
    """

    beta: Share

    facts: ClassVar[PayloadFacts] = replace(deltas().facts, keeps_local=True, slots={CENTER: "equal"})

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {CENTER: bucket.copy()}

    def read(self, cx: Context, bucket: Bucket, state: State, out: Tensor) -> Tensor:
        return bucket.subtract_from(state[CENTER], out)

    def base(self, cx: Context, bucket: Bucket, state: State) -> Tensor:
        return state[CENTER]

    def write(
        self, cx: Context, bucket: Bucket, state: State, value: Tensor, snapshot: Tensor | None
    ) -> None:
        center, share = state[CENTER], self.beta / cx.membership.world_size
        sent = bucket.copy() if snapshot is None else snapshot.to(center.dtype)
        write_parameters(bucket, torch.lerp(sent, center, share), snapshot)
        state[CENTER] = value
