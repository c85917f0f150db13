"""What NoLoCo's workers exchange: how far they have come, and where they stand."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from relaxcomm.plugin import Bucket, Context, Payload, PayloadFacts, Rate, State, frozen

SLOW = "slow"


@frozen
class points_and_progress(Payload):
    """Progress since the last exchange and the point where it began, `u = lr (phi - theta) - gamma phi`.

    phi, the slow weights, are a base that each rank has to itself. From the mean of u over some ranks comes
    a delta, `mean(u) + gamma phi`: their mean progress, and gamma of the way to their mean slow weights. The
    outer moves phi against it, and the parameters follow.

    Args:
        lr: of the progress.
        gamma: how strongly slow weights are pulled together.

    Example:
        >>> points_and_progress(lr=0.7, gamma=0.6).facts.site
        'step'

    Reference: Kolehmainen et al., "NoLoCo: No-all-reduce Low Communication Training Method for Large Models",
        2025.
    """

    lr: Rate
    gamma: Rate

    facts: ClassVar[PayloadFacts] = PayloadFacts(
        site="step",
        is_model=False,
        is_momentum=False,
        has_base=True,
        is_move=False,
        moves_model=True,
        keeps_local=False,
        extra_entries=0,
        wide=False,
        event=None,
        hears=frozenset(),
        slots={SLOW: "equal"},
    )

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return {SLOW: bucket.copy()}

    def read(self, cx: Context, bucket: Bucket, state: State, out: Tensor) -> Tensor:
        return bucket.gather(out).mul_(-self.lr).add_(state[SLOW], alpha=self.lr - self.gamma)

    def finalize(self, cx: Context, bucket: Bucket, state: State, result: Tensor) -> Tensor:
        return result + self.gamma * state[SLOW]

    def base(self, cx: Context, bucket: Bucket, state: State) -> Tensor:
        return state[SLOW]

    def write(
        self, cx: Context, bucket: Bucket, state: State, value: Tensor, snapshot: Tensor | None
    ) -> None:
        state[SLOW] = value
        if snapshot is None:
            bucket.scatter(value)
        else:
            bucket.add(value - snapshot)
