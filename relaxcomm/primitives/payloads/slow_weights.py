"""What NoLoCo's workers exchange: how far they have come, and where they stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from relaxcomm.fields.frozen import Rate, frozen
from relaxcomm.primitives.payloads.deltas import deltas
from relaxcomm.primitives.payloads.parameters import write_parameters
from relaxcomm.roles import Context, Payload, PayloadFacts, State
from relaxcomm.tensors.buckets import Bucket

SLOW = "slow"


@frozen
class slow_weights(Payload):
    """Progress since the last exchange and the point where it began, `u = lr (phi - theta) - gamma phi`.

    phi, the slow weights, are a base that each rank has to itself. From the mean of u over some ranks comes
    a delta, `mean(u) + gamma phi`: their mean progress, and gamma of the way to their mean slow weights. The
    outer moves phi against it, and the parameters follow.

    Args:
        lr: of the progress.
        gamma: how strongly slow weights are pulled together.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import gossip, slow_weights, sgd
        >>> rule = Rule(payload=slow_weights(lr=1.0, gamma=1.0), exchange=gossip(), outer=sgd(lr=1.0))
        >>> trajectory(rule, [[4.0, 0.0, 0.0, 0.0], [0.0] * 4], topology="ring")
        tensor([[1.3333, 1.3333, 0.0000, 1.3333],
                [1.3333, 0.8889, 0.8889, 0.8889]])

    Reference: Kolehmainen et al., "NoLoCo: No-all-reduce Low Communication Training Method for Large Models",
        2025.
    """

    lr: Rate
    gamma: Rate

    facts: ClassVar[PayloadFacts] = replace(deltas().facts, is_move=False, slots={SLOW: "mean"})

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {SLOW: bucket.copy()}

    def read(self, cx: Context, bucket: Bucket, state: State, out: Tensor) -> Tensor:
        return bucket.gather(out).mul_(-self.lr).add_(state[SLOW], alpha=self.lr - self.gamma)

    def finalize(self, cx: Context, bucket: Bucket, state: State, result: Tensor) -> Tensor:
        return result + self.gamma * state[SLOW]

    def base(self, cx: Context, bucket: Bucket, state: State) -> Tensor:
        return state[SLOW]

    def write(
        self, cx: Context, bucket: Bucket, state: State, value: Tensor, snapshot: Tensor | None
    ) -> None:
        state[SLOW] = value
        write_parameters(bucket, value, snapshot)
