"""What then: how a combined result moves the model."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

from torch import Tensor

from relaxcomm.buckets import Bucket
from relaxcomm.protocol.base import Context, Primitive, State


class Outer(Primitive):
    """What then: how a combined result moves the model.

    `target` is what it moves; an outer without one leaves the model alone and feeds controllers.
    `needs_base` outers move from the payload's base along the result; `needs_optimizer` ones read
    the local optimizer's learning rate.
    """

    role: ClassVar[str] = "outer"
    target: ClassVar[Literal["payload"] | None] = "payload"
    needs_base: ClassVar[bool] = False
    needs_optimizer: ClassVar[bool] = False

    @abstractmethod
    def apply(self, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None) -> Tensor:
        """The new value of the payload, `[numel]`."""
