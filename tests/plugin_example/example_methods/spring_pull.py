"""What spring_pull averaging exchanges."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.plugin import Bucket, Context, Payload, PayloadFacts, Share, State, frozen

CENTER = "center"


@frozen
class spring_pull(Payload):
    """How far the center is from the parameters, `center - p`; a spring pulls the parameters towards it.

    `p <- p - beta / N (p - center)`, with the center before the outer moves it: with `sgd(lr=beta)` by
    `center <- center + beta (mean(p) - center)`.

    Args:
        beta: strength of the N springs together, in (0, 1].

    Example:
        >>> spring_pull(beta=0.9).facts.keeps_local
        True

    Reference: Zhang, Choromanska and LeCun, "Deep Learning with Elastic Averaging SGD", NIPS 2015.
    """

    beta: Share

    facts: ClassVar[PayloadFacts] = PayloadFacts(
        site="step",
        is_model=False,
        is_momentum=False,
        has_base=True,
        is_move=True,
        moves_model=True,
        keeps_local=True,
        extra_entries=0,
        wide=False,
        event=None,
        hears=frozenset(),
        slots={CENTER: "equal"},
    )

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {CENTER: bucket.copy()}

    def read(self, cx: Context, bucket: Bucket, state: State, out: Tensor) -> Tensor:
        return bucket.subtract_from(state[CENTER], out)

    def base(self, cx: Context, bucket: Bucket, state: State) -> Tensor:
        return state[CENTER]

    def write(
        self, cx: Context, bucket: Bucket, state: State, value: Tensor, snapshot: Tensor | None
    ) -> None:
        bucket.scatter(torch.lerp(bucket.copy(), state[CENTER], self.beta / cx.membership.world_size))
        state[CENTER] = value
