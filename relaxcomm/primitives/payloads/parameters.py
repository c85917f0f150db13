"""Parameters, after the optimizer's step."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.kernels.late_moves import add_difference
from relaxcomm.roles import Context, Payload, PayloadFacts, State
from relaxcomm.tensors.buckets import Bucket


def write_parameters(bucket: Bucket, value: Tensor, snapshot: Tensor | None) -> None:
    """Make a value the parameters or, if it comes late, keep what they have moved since the snapshot."""
    if snapshot is None:
        bucket.scatter(value)
    else:
        add_difference(bucket, value, snapshot)


@frozen
class parameters(Payload):
    """The parameters, after the optimizer's step.

    A result that comes `delay` steps late keeps the progress made meanwhile:
    `p <- p + (result - p at the time of reading)`.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import all_reduce, every, parameters
        >>> rule = Rule(trigger=every(steps=2), payload=parameters(), exchange=all_reduce(), delay=1)
        >>> trajectory(rule, [[1.0, 3.0]] * 4)
        tensor([[ 1.,  3.],
                [ 2.,  6.],
                [ 5.,  7.],
                [ 6., 10.]])
    """

    facts: ClassVar[PayloadFacts] = PayloadFacts(
        site="step",
        is_model=True,
        is_momentum=False,
        has_base=False,
        is_move=False,
        moves_model=True,
        keeps_local=False,
        extra_entries=0,
        wide=False,
        event=None,
        hears=frozenset(),
        slots={},
    )

    def read(self, cx: Context, bucket: Bucket, state: State, out: Tensor) -> Tensor:
        return bucket.gather(out)

    def write(
        self, cx: Context, bucket: Bucket, state: State, value: Tensor, snapshot: Tensor | None
    ) -> None:
        write_parameters(bucket, value, snapshot)
