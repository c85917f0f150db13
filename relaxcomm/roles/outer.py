"""What then: how a combined result moves the model."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from relaxcomm.fields.frozen import stated
from relaxcomm.roles.carried import Slots
from relaxcomm.roles.context import Context, Primitive, State
from relaxcomm.roles.returned import entries
from relaxcomm.tensors.buckets import Bucket


@stated
class OuterFacts:
    """What an outer declares.

    Args:
        moves_model: the model becomes what it returns; otherwise the result only feeds controllers.
        averages: it takes the combined result as it is: as the new value, or as the move from the base.
        needs_base: it moves from the payload's base along the result.
        needs_learning_rate: it reads the local optimizer's learning rate.
        needs_momentum: it takes what it gets for momentum.
        returns_direction: what it returns is a direction, which only an optimizer can turn into a step.
        measures: it looks at the combined result of all that its rule covers before it moves any of it.
        slots: what it keeps, and what becomes of each slot with another number of ranks, see `Carried`.

    Example:
        >>> from relaxcomm.primitives import average, signs, slowmo
        >>> [(one.facts.needs_base, one.facts.returns_direction) for one in (average, signs, slowmo)]
        [(False, False), (False, True), (True, False)]
    """

    moves_model: bool
    averages: bool
    needs_base: bool
    needs_learning_rate: bool
    needs_momentum: bool
    returns_direction: bool
    measures: bool
    slots: Slots


class Outer(Primitive):
    """What then: how a combined result moves the model.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.plugin import Outer, frozen
        >>> from relaxcomm.primitives import all_reduce, deltas, sgd
        >>> @frozen
        ... class halved(Outer):
        ...     facts = sgd.facts
        ...     def apply(self, cx, bucket, state, result, base):
        ...         return base - result / 2
        >>> trajectory(Rule(payload=deltas(), exchange=all_reduce(), outer=halved()), [[1.0, 3.0]] * 2)
        tensor([[1., 1.],
                [2., 2.]])
    """

    role: ClassVar[str] = "outer"
    declares: ClassVar[type[OuterFacts]] = OuterFacts

    takes_complex: ClassVar[bool] = False
    """Whether complex entries come out right: it adds them up and multiplies them by numbers, no more."""

    @property
    @abstractmethod
    def facts(self) -> OuterFacts:
        """What it declares."""

    def check_period(self, steps: int) -> None:
        """Refuse triggers that leave too many steps between two exchanges.

        Args:
            steps: at least so many, the first exchange comes as late.

        Raises: CompositionError, saying how many it can have.
        """

    def measure(self, cx: Context, bucket: Bucket, result: Tensor) -> Tensor:
        """A few numbers of a bucket, `[k]`, such as of `cx.extra`; `apply` finds their sum in `cx.measured`.

        They are added over all buckets of the rule in float64, once an exchange and before the first `apply`.
        Where the exchange gives all ranks the same result the sum is the same on all ranks.
        """
        raise NotImplementedError(f"{self!r} declares that it measures, and has no measure()")

    @abstractmethod
    def apply(self, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None) -> Tensor:
        """The new value of the payload, `[numel]`."""


def applied(
    outer: Outer, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None
) -> Tensor:
    """What `apply` returns.

    Raises: PluginError unless that is as `entries` wants it, with the dtype of a base.
    """
    value = outer.apply(cx, bucket, state, result, base)
    return entries(value, result.numel(), "apply", outer, dtype=None if base is None else base.dtype)
