"""The network of a plan under ranks that train in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from relaxcomm.network.link import Link, SimulatedNetwork
from relaxcomm.network.operations import AllToAll, Label, Neighbors, Operation, Request
from relaxcomm.planner.links import Links
from relaxcomm.planner.pairs import AllPairs, Pair, shares
from relaxcomm.planner.priced_plan import PricedPlan


class PlannedNetwork(SimulatedNetwork):
    """Operations take as long as the same exchange in a replay.

    What several ranks share, such as a site's link, is busy with the bytes of all of them: each rank finds a
    link over which its own take as long, the slower the fewer they are.

    Args:
        plan: the algorithm in its scenario.
    """

    def __init__(self, plan: PricedPlan) -> None:
        self._links: Links = plan.scenario.links
        self._legs: Mapping[str, Sequence[Sequence[Pair]]] = {
            str(index): [leg.pairs for leg in travels.operations if leg.pairs is not None]
            for index, travels in enumerate(plan.travels)
        }
        self._found: dict[Hashable, Link] = {}

    def link(self, operation: Operation, rank: int, world_size: int, rule: str) -> Link:
        if self._links.uniform:
            return self._links.slowest
        if isinstance(operation, Neighbors):
            return self._to_neighbors(operation, rank, rule)
        over: Sequence[Pair] | None = AllPairs(world_size) if isinstance(operation, AllToAll) else None
        if isinstance(operation, Request):  # of a few, or an answer to them, which go the other way
            legs = (leg for leg in self._legs.get(rule, ()) if any(one == rank for one, _ in leg))
            over = next(legs, AllPairs(world_size))
        if over not in self._found:
            self._found[over] = self._over(over)
        return self._found[over]

    def _to_neighbors(self, operation: Neighbors, rank: int, rule: str) -> Link:
        pairs = tuple((rank, peer) for peer in operation.sends if peer != rank)
        if not pairs:
            return Link()
        if (rule, pairs) not in self._found:
            over = next((leg for leg in self._legs.get(rule, ()) if {*pairs} <= {*leg}), pairs)
            own = sum(share for (one, _), share in zip(over, shares(over), strict=True) if one == rank)
            self._found[rule, pairs] = self._over(over, own)
        return self._found[rule, pairs]

    def _over(self, pairs: Sequence[Pair] | None, own_share: float = 1.0) -> Link:
        """A link over which bytes, of which a rank sends a share of the mean, take as long as all of them."""
        way = self._links.way(pairs)
        rate = own_share / way.seconds_per_byte if way.seconds_per_byte else float("inf")
        return Link(way.latency_seconds, rate, way.burst_seconds * rate if way.burst_seconds else 0.0)


def coding_seconds(plan: PricedPlan) -> Callable[[Label], float]:
    """What a worker codes before an operation, and after it: the half of its share of the exchange."""
    shares = {
        (task.label, task.bucket.index): cost.coding_seconds / (2 * cost.operations)
        for held in plan.by_rule
        for task in held
        if (cost := plan.priced(task, plan.scenario.links).cost).operations
    }
    return lambda label: shares.get((label.rule, label.unit), 0.0)
