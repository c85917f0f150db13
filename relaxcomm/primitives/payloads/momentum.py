"""The workers' momentum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from relaxcomm.fields.frozen import Fraction, frozen
from relaxcomm.primitives.payloads.gradients import gradients
from relaxcomm.roles import Context, PayloadFacts, State
from relaxcomm.roles.optimizer_groups import refuse_all_but_plain_sgd
from relaxcomm.tensors.buckets import Bucket

_MOMENTUM = "first"


@frozen
class momentum(gradients):
    """The workers' momentum, which begins each step from their mean: `m_n = beta m + (1 - beta) g_n`.

    The result, `m = (1/N) sum_n m_n`, becomes `.grad`, or what the outer makes of it. With a GradScaler it is
    kept and exchanged unscaled. Of a parameter that no worker has used m decays and `.grad` stays None; under
    a delay m is the last result that has come.

    Args:
        beta: in [0, 1).

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import all_reduce, momentum
        >>> rule = Rule(payload=momentum(beta=0.9), exchange=all_reduce())
        >>> trajectory(rule, [[1.0, 3.0], [0.0, 0.0]])
        tensor([[0.2000, 0.2000],
                [0.3800, 0.3800]])

    Reference: Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's
        Convergence Speed", ICML 2021.
    """

    beta: Fraction = 0.9

    facts: ClassVar[PayloadFacts] = replace(gradients.facts, is_momentum=True, slots={_MOMENTUM: "equal"})

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {_MOMENTUM: bucket.zeros()}

    def check_optimizer(self, groups: list[dict[str, object]]) -> None:
        refuse_all_but_plain_sgd(self, groups)

    def read(self, cx: Context, bucket: Bucket, state: State, out: Tensor) -> Tensor:
        return (
            super().read(cx, bucket, state, out).mul_(1 - self.beta).add_(state[_MOMENTUM], alpha=self.beta)
        )

    def finalize(self, cx: Context, bucket: Bucket, state: State, result: Tensor) -> Tensor:
        state[_MOMENTUM] = result.to(state[_MOMENTUM].dtype, copy=True)
        return result
