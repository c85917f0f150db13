"""Outer optimizers: how a combined result moves the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Fraction, Rate, frozen
from relaxcomm.roles import Context, Outer, State
from relaxcomm.tensors import buffer_pool
from relaxcomm.tensors.buckets import Bucket

MOMENTUM = "momentum"


def _based(base: Tensor | None) -> Tensor:
    assert base is not None, "the legality check lets only payloads with a base through"
    return base


def _add(one: Tensor, other: Tensor, weight: float) -> Tensor:
    """`one + weight other`, in memory that an earlier exchange may have used."""
    out = buffer_pool.empty_like(one, torch.promote_types(one.dtype, other.dtype))
    return torch.add(one, other, alpha=weight, out=out)


@frozen
class average(Outer):
    """Take the combined result as it is; of deltas, `p = anchor - mean delta`.

    Example:
        >>> average()
        average()
    """

    def apply(self, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None) -> Tensor:
        return result if base is None else _add(base, result, -1.0)


@frozen
class observe(Outer):
    """Leave the model alone: the result only feeds a controller that watches the rule.

    Example:
        >>> observe()
        observe()
    """

    target: ClassVar[Literal["payload"] | None] = None

    def apply(self, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None) -> Tensor:
        return result


@frozen
class signs(Outer):
    """Take the sign of each entry of the combined result, 0 where it is 0: `sign((1/N) sum_n x_n)`.

    For gradients, whose signs an optimizer multiplies by its learning rate. An entry that is not finite
    becomes NaN.

    Example:
        >>> signs()
        signs()

    Reference: Peng et al., "DeMo: Decoupled Momentum Optimization", arXiv 2411.19870.
    """

    for_gradients: ClassVar[bool] = True

    def apply(self, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None) -> Tensor:
        return torch.sign(result).add_(result * 0)  # NaN stays visible


@frozen
class sgd(Outer):
    """Move the anchor against the mean delta: `m <- momentum m + delta`, `p = anchor - lr m`.

    Args:
        lr: outer learning rate, positive; 1 without momentum is plain averaging.
        momentum: in [0, 1).

    Example:
        >>> sgd(lr=0.7)
        sgd(lr=0.7)
    """

    lr: Rate
    momentum: Fraction = 0.0

    needs_base: ClassVar[bool] = True

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {MOMENTUM: bucket.zeros()} if self.momentum else {}

    def apply(self, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None) -> Tensor:
        if self.momentum:
            result = state[MOMENTUM] = _add(result, state[MOMENTUM], self.momentum)
        return _add(_based(base), result, -self.lr)


@frozen
class nesterov(Outer):
    """Nesterov momentum on deltas: `m <- momentum m + delta`, `p = anchor - lr (delta + momentum m)`.

    Args:
        lr: outer learning rate, positive.
        momentum: in [0, 1).

    Example:
        >>> nesterov(lr=0.7, momentum=0.9)
        nesterov(lr=0.7, momentum=0.9)

    Reference: Douillard et al., "DiLoCo", arXiv 2311.08105.
    """

    lr: Rate
    momentum: Fraction

    needs_base: ClassVar[bool] = True

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {MOMENTUM: bucket.zeros()}

    def apply(self, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None) -> Tensor:
        state[MOMENTUM] = _add(result, state[MOMENTUM], self.momentum)
        step = _add(result, state[MOMENTUM], self.momentum)
        return torch.sub(_based(base), step, alpha=self.lr, out=step)


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
        >>> slowmo(lr=1.0, momentum=0.5)
        slowmo(lr=1.0, momentum=0.5)

    Reference: Wang et al., "SlowMo", ICLR 2020.
    """

    lr: Rate
    momentum: Fraction

    needs_base: ClassVar[bool] = True
    needs_optimizer: ClassVar[bool] = True

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {MOMENTUM: bucket.zeros()}

    def apply(self, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None) -> Tensor:
        rate = torch.as_tensor(cx.learning_rate(bucket), dtype=result.dtype, device=bucket.device)
        slowed = state[MOMENTUM] * self.momentum
        stopped = rate == 0
        state[MOMENTUM] = torch.where(stopped, slowed, slowed + result / rate)
        step = torch.where(stopped, result, rate * state[MOMENTUM])
        return torch.sub(_based(base), step, alpha=self.lr)
