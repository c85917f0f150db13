"""What the parameters have moved since the last exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Fraction, frozen
from relaxcomm.primitives.payloads.parameters import parameters, write_parameters
from relaxcomm.roles import Context, Payload, PayloadFacts, State
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.differences import Difference

ANCHOR = "anchor"


@frozen
class deltas(Payload):
    """What the parameters have moved since the last exchange, `anchor - p` (a pseudo-gradient).

    The anchor is a copy of the parameters as they were after the last exchange, the same on all
    ranks. The outer optimizer moves it by the combined deltas; the parameters follow:
    `p <- anchor`, or `p <- (1 - merge) anchor + merge p`, or, when the result comes late and
    `merge` is None, `p <- p + (anchor - p at the time of reading)`.

    Args:
        merge: weight of the local parameters when the result is written, in [0, 1).

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import all_reduce, deltas
        >>> rule = Rule(payload=deltas(merge=0.5), exchange=all_reduce())
        >>> trajectory(rule, [[1.0, 3.0]])
        tensor([[1.5000, 2.5000]])

    Reference: Reddi et al., "Adaptive Federated Optimization", ICLR 2021.
    """

    merge: Fraction | None = None

    @cached_property
    def facts(self) -> PayloadFacts:
        return replace(
            parameters.facts,
            is_model=False,
            has_base=True,
            is_move=True,
            keeps_local=bool(self.merge),
            slots={ANCHOR: "equal"},
        )

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {ANCHOR: bucket.copy()}

    def read(self, cx: Context, bucket: Bucket, state: State, out: Tensor) -> Tensor:
        return bucket.subtract_from(state[ANCHOR], out)

    def difference(self, cx: Context, bucket: Bucket, state: State) -> Difference | None:
        return bucket.difference(state[ANCHOR])

    def base(self, cx: Context, bucket: Bucket, state: State) -> Tensor | None:
        return state[ANCHOR]

    def write(
        self, cx: Context, bucket: Bucket, state: State, value: Tensor, snapshot: Tensor | None
    ) -> None:
        state[ANCHOR] = value
        if self.merge is not None:
            bucket.scatter(torch.lerp(value, bucket.copy(), self.merge))
        else:
            write_parameters(bucket, value, snapshot)
