"""Momentum in units of the local optimizer's learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Fraction, Rate, frozen
from relaxcomm.primitives.outers.sgd import sgd
from relaxcomm.roles import Context, Outer, OuterFacts, State
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.host_copies import on_device

_MOMENTUM = "momentum"


@frozen
class slowmo(Outer):
    """Slow momentum: `u <- momentum u + delta / gamma`, `p = anchor - lr gamma u`.

    gamma is the local optimizer's learning rate at the exchange, of each parameter's own group.
    Where a schedule has brought it to 0 the formula's limit is taken: `p = anchor - lr delta`, and
    `u` only decays.

    Args:
        lr: the slow learning rate alpha, positive.
        momentum: the slow momentum beta, in [0, 1).

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import all_reduce, deltas, slowmo
        >>> rule = Rule(payload=deltas(), exchange=all_reduce(), outer=slowmo(lr=1.0, momentum=0.5))
        >>> trajectory(rule, [[1.0, 3.0]] * 2)
        tensor([[2., 2.],
                [5., 5.]])

    Reference: Wang et al., "SlowMo: Improving Communication-Efficient Distributed SGD with Slow Momentum",
        ICLR 2020.
    """

    lr: Rate
    momentum: Fraction

    facts: ClassVar[OuterFacts] = replace(sgd.facts, needs_learning_rate=True)

    takes_complex = True

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {_MOMENTUM: bucket.zeros()}

    def apply(self, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None) -> Tensor:
        rate = cx.learning_rate(bucket)
        if isinstance(rate, Tensor):
            rate = on_device(rate, bucket.device).to(result.dtype)
        else:  # not `torch.tensor`, of which the host would wait for a copy
            rate = torch.full((), rate, dtype=result.dtype, device=bucket.device)
        slowed = state[_MOMENTUM] * self.momentum
        stopped = rate == 0
        state[_MOMENTUM] = torch.where(stopped, slowed, slowed + result / rate)
        step = torch.where(stopped, result, rate * state[_MOMENTUM])
        assert base is not None, "legality lets only payloads with a base through"
        return torch.sub(base, step, alpha=self.lr)
