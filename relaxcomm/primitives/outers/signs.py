"""The signs of the combined result."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.primitives.outers.average import average
from relaxcomm.roles import Context, Outer, OuterFacts, State
from relaxcomm.tensors.buckets import Bucket


@frozen
class signs(Outer):
    """Take the sign of each entry of the combined result, 0 where it is 0: `sign((1/N) sum_n x_n)`.

    For gradients, whose signs an optimizer multiplies by its learning rate. An entry that is not finite
    becomes NaN.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import all_reduce, gradients, signs
        >>> rule = Rule(payload=gradients(), exchange=all_reduce(), outer=signs())
        >>> trajectory(rule, [[1.0, -3.0], [2.0, -2.0]])
        tensor([[-1., -1.],
                [-1., -1.]])

    Reference: Peng et al., "DeMo: Decoupled Momentum Optimization", arXiv 2411.19870.
    """

    facts: ClassVar[OuterFacts] = replace(average.facts, averages=False, returns_direction=True)

    def apply(self, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None) -> Tensor:
        return torch.sign(result).add_(result * 0)  # NaN stays visible
