"""Adam whose second moment is frozen after a while, so that only the first need be exchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.errors import CompositionError
from relaxcomm.fields.frozen import Fraction, Rate, Steps, frozen
from relaxcomm.primitives.outers.signs import signs
from relaxcomm.roles import Context, Outer, OuterFacts, State
from relaxcomm.roles.optimizer_groups import refuse_all_but_plain_sgd
from relaxcomm.tensors.buckets import Bucket

_FIRST, _SECOND, _COUNT, _LEARNT = "first", "second", "count", "learnt"


@frozen
class frozen_adam(Outer):
    """Adam's direction from mean momentum m: `(m / (1 - beta^t)) / (sqrt(v / (1 - beta2^t)) + eps)`.

    In exchanges of the first `warmup_steps` steps `v <- beta2 v + (1 - beta2) g^2`, with the mean gradient g
    that m has grown by; v and its t then stay, so that coarse messages, which would spoil g^2, do no harm.
    The optimizer must be SGD without momentum, whose learning rate and weight decay (decoupled) apply.

    Args:
        warmup_steps: optimizer steps in whose exchanges v is learnt, counted from the first in which the
            rule is active; these must be in full precision, and the trigger must fire in one of them.
        beta: of the payload `momentum`.
        beta2: in [0, 1).
        eps: positive.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import all_reduce, frozen_adam, momentum
        >>> outer = frozen_adam(warmup_steps=1000)
        >>> rule = Rule(payload=momentum(beta=0.9), exchange=all_reduce(), outer=outer)
        >>> trajectory(rule, [[1.0, 3.0]] * 2)
        tensor([[1., 1.],
                [2., 2.]])

    Reference: Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's
        Convergence Speed", ICML 2021.

    Differs from the code: moments are corrected for their beginning at 0.
    """

    warmup_steps: Steps
    beta: Fraction = 0.9
    beta2: Fraction = 0.999
    eps: Rate = 1e-8

    facts: ClassVar[OuterFacts] = replace(
        signs.facts,
        needs_momentum=True,
        slots={_FIRST: "equal", _SECOND: "equal", _COUNT: "equal", _LEARNT: "equal"},
    )

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        none = torch.zeros((), dtype=torch.float64, device=bucket.device)
        return {_FIRST: bucket.zeros(), _SECOND: bucket.zeros(), _COUNT: none, _LEARNT: none.clone()}

    def check_optimizer(self, groups: list[dict[str, object]]) -> None:
        refuse_all_but_plain_sgd(self, groups)

    def check_period(self, steps: int) -> None:
        if steps > self.warmup_steps:
            raise CompositionError(
                f"{self!r} learns its second moment in the first {self.warmup_steps} steps, but the trigger "
                f"leaves {steps} steps between two exchanges, so it would learn nothing and divide by 0; "
                f"give warmup_steps at least {steps}, as many as the compressor leaves exact"
            )

    def apply(self, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None) -> Tensor:
        count = state[_COUNT] + 1
        if cx.step - cx.start < self.warmup_steps:
            gradient = torch.sub(result, state[_FIRST], alpha=self.beta).div_(1 - self.beta)
            state[_SECOND] = torch.addcmul(
                state[_SECOND] * self.beta2, gradient, gradient, value=1 - self.beta2
            )
            state[_FIRST] = result.to(state[_FIRST].dtype, copy=True)
            state[_LEARNT] = state[_LEARNT] + 1
        size = (state[_SECOND] / (1 - self.beta2 ** state[_LEARNT])).sqrt_().add_(self.eps)
        state[_COUNT] = count
        return result / (1 - self.beta**count) / size
