"""SGD on deltas, with and without momentum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Fraction, Rate, frozen
from relaxcomm.primitives.outers.average import average
from relaxcomm.roles import Context, Outer, OuterFacts, State
from relaxcomm.tensors import buffer_pool
from relaxcomm.tensors.buckets import Bucket

_MOMENTUM = "momentum"


@frozen
class sgd(Outer):
    """Move the anchor against the mean delta: `m <- momentum m + delta`, `p = anchor - lr m`.

    Args:
        lr: outer learning rate, positive; 1 without momentum is plain averaging.
        momentum: in [0, 1).

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import all_reduce, deltas, sgd
        >>> rule = Rule(payload=deltas(), exchange=all_reduce(), outer=sgd(lr=0.7))
        >>> trajectory(rule, [[1.0, 3.0]] * 2)
        tensor([[1.4000, 1.4000],
                [2.8000, 2.8000]])
    """

    lr: Rate
    momentum: Fraction = 0.0

    facts: ClassVar[OuterFacts] = replace(
        average.facts, averages=False, needs_base=True, slots={_MOMENTUM: "equal"}
    )

    takes_complex = True

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {_MOMENTUM: bucket.zeros()} if self.momentum else {}

    def apply(self, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None) -> Tensor:
        if self.momentum:
            result = state[_MOMENTUM] = buffer_pool.add(result, state[_MOMENTUM], self.momentum)
        assert base is not None, "legality lets only payloads with a base through"
        return buffer_pool.add(base, result, -self.lr, out=cx.out)


@frozen
class nesterov(Outer):
    """Nesterov momentum on deltas: `m <- momentum m + delta`, `p = anchor - lr (delta + momentum m)`.

    Args:
        lr: outer learning rate, positive.
        momentum: in [0, 1).

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import all_reduce, deltas, nesterov
        >>> rule = Rule(payload=deltas(), exchange=all_reduce(), outer=nesterov(lr=0.7, momentum=0.9))
        >>> trajectory(rule, [[1.0, 3.0]] * 2)
        tensor([[2.6600, 2.6600],
                [6.4540, 6.4540]])

    Reference: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models",
        arXiv 2311.08105.
    """

    lr: Rate
    momentum: Fraction

    facts: ClassVar[OuterFacts] = sgd.facts

    takes_complex = True

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {_MOMENTUM: bucket.zeros()}

    def apply(self, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None) -> Tensor:
        state[_MOMENTUM] = buffer_pool.add(result, state[_MOMENTUM], self.momentum)
        step = buffer_pool.add(result, state[_MOMENTUM], self.momentum, out=cx.out)
        assert base is not None, "legality lets only payloads with a base through"
        return torch.sub(base, step, alpha=self.lr, out=step)
