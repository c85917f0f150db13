"""A rule on a bucket with what its exchange costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relaxcomm.composition.exchange_cost import ExchangeCost
from relaxcomm.network.timeline import Times
from relaxcomm.planner.collectives import Collective
from relaxcomm.step.plan import Task


@dataclass(frozen=True, eq=False)
class PricedTask:
    """A task with its costs.

    Args:
        task: a rule on a bucket.
        cost: of one exchange, to a worker.
        travels: who waits for whom.
        operations: that wait for each other: seconds for which each occupies the links, and those of the
            latency of its messages, each `[ranks]` of the replay.
        busiest_bytes: through the busiest link, in one direction.
        known_operations: that the engine knows it will issue; answers leave by themselves.
    """

    task: Task
    cost: ExchangeCost
    travels: Collective
    operations: Sequence[tuple[Times, Times]]
    busiest_bytes: float
    known_operations: int
