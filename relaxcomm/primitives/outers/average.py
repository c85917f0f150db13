"""The combined result as it is."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.roles import Context, Outer, OuterFacts, State
from relaxcomm.tensors import buffer_pool
from relaxcomm.tensors.buckets import Bucket


@frozen
class average(Outer):
    """Take the combined result as it is; of deltas, `p = anchor - mean delta`.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import all_reduce, average, deltas
        >>> rule = Rule(payload=deltas(), exchange=all_reduce(), outer=average())
        >>> trajectory(rule, [[1.0, 3.0]] * 2)
        tensor([[2., 2.],
                [4., 4.]])
    """

    facts: ClassVar[OuterFacts] = OuterFacts(
        moves_model=True,
        averages=True,
        needs_base=False,
        needs_learning_rate=False,
        needs_momentum=False,
        returns_direction=False,
        measures=False,
        slots={},
    )

    takes_complex = True

    def apply(self, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None) -> Tensor:
        return result if base is None else buffer_pool.add(base, result, -1.0, out=cx.out)
