"""A result that moves nothing."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.roles import Context, Outer, State
from relaxcomm.tensors.buckets import Bucket


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
