"""Momentum of deltas."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from relaxcomm.plugin import Bucket, Context, Fraction, Outer, OuterFacts, State, frozen


@frozen
class heavy_ball(Outer):
    """Polyak's momentum: `v <- momentum v + delta`, and the base moves by `-v`.

    Args:
        momentum: in [0, 1).

    Example:
        >>> heavy_ball(momentum=0.9)
        heavy_ball(momentum=0.9)
    """

    momentum: Fraction

    facts: ClassVar[OuterFacts] = OuterFacts(
        moves_model=True,
        averages=False,
        needs_base=True,
        needs_learning_rate=False,
        needs_momentum=False,
        returns_direction=False,
        measures=False,
        slots={"velocity": "equal"},
    )

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {"velocity": bucket.zeros()}

    def apply(self, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None) -> Tensor:
        state["velocity"] = self.momentum * state["velocity"] + result
        assert base is not None, "legality lets only payloads with a base through"
        return base - state["velocity"]
