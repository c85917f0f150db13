"""Gradients, as they become ready in backward."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.roles import Context, Payload, State
from relaxcomm.tensors.buckets import Bucket


@frozen
class gradients(Payload):
    """The gradients, bucket by bucket while backward goes on; the result becomes `.grad`.

    With a GradScaler they are exchanged unscaled, `g / scale`, since workers may hold different
    scales, and rescaled when written.

    Example:
        >>> gradients()
        gradients()
    """

    site: ClassVar[Literal["backward", "step"]] = "backward"

    def read(self, cx: Context, bucket: Bucket, state: State, out: Tensor) -> Tensor:
        if cx.gradient_scale is not None:
            out.div_(cx.gradient_scale)
        return out

    def write(
        self, cx: Context, bucket: Bucket, state: State, value: Tensor, snapshot: Tensor | None
    ) -> None:
        if cx.gradient_scale is not None:
            value.mul_(cx.gradient_scale)
