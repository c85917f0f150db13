"""Gradients, as they become ready in backward."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.roles import Context, Payload, PayloadFacts, State
from relaxcomm.tensors.buckets import Bucket


@frozen
class gradients(Payload):
    """The gradients, bucket by bucket while backward goes on; the result becomes `.grad`.

    With a GradScaler they are exchanged unscaled, `g / scale`, since workers may hold different
    scales, and rescaled when written.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import all_reduce, gradients
        >>> rule = Rule(payload=gradients(), exchange=all_reduce())
        >>> trajectory(rule, [[1.0, 2.0, 6.0]] * 2)
        tensor([[3., 3., 3.],
                [6., 6., 6.]])
    """

    facts: ClassVar[PayloadFacts] = PayloadFacts(
        site="backward",
        is_model=False,
        is_momentum=False,
        has_base=False,
        is_move=True,
        moves_model=False,
        keeps_local=False,
        extra_entries=0,
        wide=False,
        event=None,
        hears=frozenset(),
        slots={},
    )

    @property
    def passes_gradients(self) -> bool:
        return type(self) is gradients  # what derives from it may make anything of them

    def read(self, cx: Context, bucket: Bucket, state: State, out: Tensor) -> Tensor:
        if cx.gradient_scale is not None:
            out.div_(cx.gradient_scale)
        return out

    def write(
        self, cx: Context, bucket: Bucket, state: State, value: Tensor, snapshot: Tensor | None
    ) -> None:
        if cx.gradient_scale is not None:
            value.mul_(cx.gradient_scale)
