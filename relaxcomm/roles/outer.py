"""What then: how a combined result moves the model."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

from torch import Tensor

from relaxcomm.roles.context import Context, Primitive, State
from relaxcomm.tensors.buckets import Bucket


class Outer(Primitive):
    """What then: how a combined result moves the model.

    `target` is what it moves; an outer without one leaves the model alone and feeds controllers.
    `needs_base` outers move from the payload's base along the result; `needs_optimizer` ones read
    the local optimizer's learning rate; `for_gradients` ones return a direction, which only an optimizer
    can turn into a step; `needs_momentum` ones read a payload that `is_momentum`; ones that say `measures`
    look at the combined result of all that their rule covers before they move any of it, so that what they
    do, such as a clip by norm, does not depend on the size of buckets.
    """

    role: ClassVar[str] = "outer"
    target: ClassVar[Literal["payload"] | None] = "payload"
    needs_base: ClassVar[bool] = False
    needs_optimizer: ClassVar[bool] = False
    for_gradients: ClassVar[bool] = False
    needs_momentum: ClassVar[bool] = False
    measures: ClassVar[bool] = False

    def measure(self, cx: Context, bucket: Bucket, result: Tensor) -> Tensor:
        """A few numbers of one bucket's combined result, `[k]`; `apply` finds their sum in `cx.measured`.

        They are added over all buckets of the rule in float64, once an exchange and before the first `apply`.
        Where the exchange gives all ranks the same result the sum is the same on all ranks.
        """
        raise NotImplementedError(f"{self!r} says that it measures, and has no measure()")

    @abstractmethod
    def apply(self, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None) -> Tensor:
        """The new value of the payload, `[numel]`."""
