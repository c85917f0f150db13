"""A result that moves nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.primitives.outers.average import average
from relaxcomm.roles import Context, Outer, OuterFacts, State
from relaxcomm.tensors.buckets import Bucket


@frozen
class observe(Outer):
    """Leave the model alone: the result only feeds a controller that watches the rule.

    Example:
        >>> from relaxcomm import Algorithm, Rule, rehearse
        >>> from relaxcomm.primitives import all_reduce, every, gradients
        >>> from relaxcomm.primitives import norm_test, observe, parameters
        >>> seldom = every(steps=3)
        >>> local = Rule(trigger=seldom, payload=parameters(), exchange=all_reduce())
        >>> watched = Rule(trigger=seldom, payload=gradients(), exchange=all_reduce(), outer=observe())
        >>> test = norm_test(rule=1, tolerance=0.8, max_batch_size=8)
        >>> alone = Algorithm((local,), name="alone")
        >>> both = Algorithm((local, watched), name="both", controllers=(test,))
        >>> [(round(run.loss, 3), run.bytes_sent) for run in (rehearse(alone), rehearse(both))]
        [(0.351, 1108), (0.351, 2432)]
    """

    facts: ClassVar[OuterFacts] = replace(average.facts, moves_model=False, averages=False)

    def apply(self, cx: Context, bucket: Bucket, state: State, result: Tensor, base: Tensor | None) -> Tensor:
        return result
