"""How an exchange travels: who sends to whom, and how many messages follow each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relaxcomm.composition.rule import Rule
from relaxcomm.network.operations import AllGather, AllReduce, AllToAll, Operation
from relaxcomm.network.traffic import messages as messages_in_turn
from relaxcomm.planner.arrivals import Heard, alone, by_groups, from_all, from_neighbors, served
from relaxcomm.planner.pairs import AllPairs, NeighborPairs, Pair, shares
from relaxcomm.primitives.exchanges.all_reduce import all_reduce
from relaxcomm.primitives.exchanges.scatter_gather import scatter_gather
from relaxcomm.primitives.exchanges.vote import vote
from relaxcomm.roles import Exchange
from relaxcomm.topology import Topology

_OPERATIONS: Mapping[type[Exchange], tuple[type[Operation], ...]] = {
    all_reduce: (AllReduce,),
    scatter_gather: (AllToAll, AllGather),
    vote: (AllToAll, AllGather),
}
"""Of exchanges over all ranks that do not gather alone."""


@dataclass(frozen=True)
class Leg:
    """Messages of an exchange between certain ranks.

    Args:
        pairs: who sends to whom; None for a ring, as gloo's all-reduce and all-gather are.
        rounds: messages that follow each other.
        share: of the bytes that a worker sends in the exchange, on average.
    """

    pairs: Sequence[Pair] | None
    rounds: int
    share: float = 1.0


_NOWHERE = Leg((), 0, 0.0)


@dataclass(frozen=True)
class Collective:
    """How one exchange travels.

    Args:
        operations: one after the other, each on its leg.
        heard: who waits for whom.
        is_request: whether the second of two is an answer, to which `heard` does not apply: it leaves when
            those are there whom its rank waits for, whoever asks.
        answered_apart: whether those who answer do not ask, so that their links are free for it.
    """

    operations: Sequence[Leg]
    heard: Heard
    is_request: bool = False
    answered_apart: bool = False

    @property
    def waits_for_nobody(self) -> bool:
        """Whether each rank has its result however late others ask."""
        return self.heard is alone


def collective(rule: Rule, topology: Topology, workers: int, *, in_parts: bool = False) -> Collective:
    """How a rule's exchange travels.

    Args:
        rule: whose exchange.
        topology: the configured graph.
        workers: their number.
        in_parts: whether an all-reduce is one of halves that ranks sum in float32.

    Raises: TopologyError for a graph that the exchange cannot use.
    """
    exchange = rule.exchange
    graph = exchange.topology_override() or topology
    exchange.check_graph(graph, workers)
    facts, messages = exchange.facts, rule.compressor.facts.rounds
    if workers == 1:
        return Collective([_NOWHERE] * (messages * facts.operations), alone)
    if facts.topology == "groups":
        groups = graph.groups(workers)
        everyone = [list(range(workers))] if facts.same_result else groups
        return Collective(_legs(groups, messages, facts.same_result), by_groups(everyone))
    if facts.topology == "graph":
        if not facts.collective:
            return Collective(_asked(graph, workers), alone, is_request=True, answered_apart=True)
        number = messages * facts.operations
        leg = Leg(NeighborPairs.over(graph, workers), 1, 1 / number)
        return Collective([leg] * number, from_neighbors(graph, workers))
    if not facts.collective:
        return Collective([Leg(AllPairs(workers), 1)] * 2, served(exchange, workers), is_request=True)
    kinds = (AllToAll, AllGather) if in_parts else operations_over_all(exchange)
    each = 1 / (len(kinds) * messages)
    return Collective([_leg(kind, workers, each) for kind in kinds] * messages, from_all)


def operations_over_all(exchange: Exchange) -> tuple[type[Operation], ...]:
    """The operations of an exchange over all ranks, each of which sends as much."""
    for cls, known in _OPERATIONS.items():
        if isinstance(exchange, cls):
            return known
    return (AllGather,) * exchange.facts.operations


def _leg(kind: type[Operation], workers: int, share: float) -> Leg:
    return Leg(AllPairs(workers) if kind is AllToAll else None, messages_in_turn(kind, workers), share)


def _asked(graph: Topology, workers: int) -> list[Leg]:
    """A request of the active ranks, and the answers of the passive ones."""
    passive, active = graph.sides(workers)
    there = [
        (rank, peer) for rank in active for peer in sorted(graph.weights(workers)[rank]) if peer in passive
    ]
    asked: dict[int, float] = defaultdict(float)
    for (_, peer), share in zip(there, shares(there), strict=True):
        asked[peer] += share
    each = workers / len(active)  # bytes are those of an average over all, of whom some send none
    back = [(peer, rank) for rank, peer in there]
    return [Leg(tuple(there), 1, each), Leg(tuple(back), 1, each * max(1.0, *asked.values()))]


def _legs(groups: Sequence[Sequence[int]], messages: int, across: bool) -> list[Leg]:
    """Reduced inside the groups, then, if wanted, between those that hold the same entries, and spread."""
    within = 2 * sum(len(group) - 1 for group in groups)
    between = 2 * (len(groups) - 1) if across else 0
    inside = {(a, b): 1 / len(group) for group in groups for a in group for b in group if a != b}
    workers, whole = sum(map(len, groups)), 2 * messages * (within + between)

    def leg(parts: Mapping[Pair, float], sent: int) -> Leg:
        return Leg(NeighborPairs.of_parts(parts, workers), 1, sent / whole) if sent else _NOWHERE

    within_one = leg(inside, within)
    across_one = [leg(_across(groups), between)] * 2 if across else []
    return [within_one, *across_one, within_one] * messages


def _across(groups: Sequence[Sequence[int]]) -> dict[Pair, float]:
    """Ranks of different groups whose shares of the entries overlap, and by how much."""
    shares = [
        (rank, place / len(group), (place + 1) / len(group), index)
        for index, group in enumerate(groups)
        for place, rank in enumerate(group)
    ]
    return {
        (one, other): overlap
        for one, low, high, here in shares
        for other, start, stop, there in shares
        if here != there and (overlap := min(high, stop) - max(low, start)) > 1e-9
    }
