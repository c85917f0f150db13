"""How an exchange travels: who sends to whom, and how many messages follow each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from relaxcomm.composition.exchange_cost import pairs_of, stages_of
from relaxcomm.composition.rule import Rule
from relaxcomm.fields.looked_at import error
from relaxcomm.network.operations import AllToAll, Neighbors, Request
from relaxcomm.network.traffic import messages as messages_in_turn
from relaxcomm.planner.arrivals import Heard, alone, from_all, from_neighbors, from_senders, served
from relaxcomm.planner.pairs import AllPairs, NeighborPairs, Pair
from relaxcomm.roles import Awaited, Exchange, Stage
from relaxcomm.roles.stage import Pairs
from relaxcomm.topology import Topology


@dataclass(frozen=True)
class Leg:
    """Messages of an exchange between certain ranks.

    Args:
        pairs: who sends to whom; None for a ring, as gloo's all-reduce and all-gather are.
        rounds: messages that follow each other.
        share: of the bytes that a worker sends in the exchange, or in its answers, on average.
        is_answer: whether it is one, to which `heard` does not apply: it leaves when those are there whom its
            rank waits for, whoever asks.
        is_apart: whether those who answer do not ask, so that their links are free for it.
        heard: who waits for whom in it; None for those who do in the whole exchange.
    """

    pairs: Sequence[Pair] | None
    rounds: int
    share: float = 1.0
    is_answer: bool = False
    is_apart: bool = False
    heard: Heard | None = None


_NOWHERE = Leg((), 0, 0.0)


@dataclass(frozen=True)
class Collective:
    """How one exchange travels.

    Args:
        operations: one after the other, each on its leg, with the answers to them.
        heard: who waits for whom.
    """

    operations: Sequence[Leg]
    heard: Heard

    @property
    def waits_for_nobody(self) -> bool:
        """Whether each rank has its result however late others ask."""
        return self.heard is alone


def collective(rule: Rule, topology: Topology, workers: int, *, exact: bool = False) -> Collective:
    """How a rule's exchange travels.

    Args:
        rule: whose exchange.
        topology: the configured graph.
        workers: their number.
        exact: whether its means are of halves that are rounded once.

    Raises: TopologyError for a graph that the exchange cannot use.
    """
    exchange, messages = rule.exchange, rule.compressor.facts.rounds
    graph = exchange.topology_override() or topology
    exchange.check_graph(graph, workers)
    stages = stages_of(exchange, workers, topology, exact=exact)
    if workers == 1:
        return Collective([_NOWHERE] * max(1, messages * len(stages)), alone)
    whole = messages * sum(stage.sent(workers, graph) for stage in stages)
    legs = {stage: _legs(stage, exchange, graph, workers, whole) for stage in dict.fromkeys(stages)}
    operations = [leg for stage in stages for leg in legs[stage]] * messages
    return Collective(operations, _heard(exchange, graph, workers))


def _heard(exchange: Exchange, graph: Topology, workers: int) -> Heard:
    facts = exchange.facts
    if not facts.collective:
        awaited: object = exchange.awaited(workers)
        if isinstance(awaited, Awaited):
            return served(awaited)
        raise error(awaited, "return an Awaited, of so many workers", "awaited", exchange)
    whole = facts.same_result or facts.topology == "complete"
    return from_all if whole else from_neighbors(graph, workers)


def _legs(stage: Stage, exchange: Exchange, graph: Topology, workers: int, whole: float) -> list[Leg]:
    """That of a stage, of all that a worker sends, and that of the answers to it."""
    sent = stage.sent(workers, graph)
    if not sent:
        return [_NOWHERE]
    told = None if stage.pairs is None else pairs_of(stage, exchange, workers)
    if stage.kind is not Request:
        pairs = _pairs(stage, graph, workers) if told is None else NeighborPairs.of_parts(told, workers)
        heard = None if told is None else from_senders(tuple(told), workers)
        return [Leg(pairs, messages_in_turn(stage.kind, workers), sent / whole, heard=heard)]
    if told is not None:
        return _asked(told, workers, sent / whole)
    return [Leg(AllPairs(workers), 1, sent / whole, is_answer) for is_answer in (False, True)]


def _pairs(stage: Stage, graph: Topology, workers: int) -> Sequence[Pair] | None:
    if stage.kind is Neighbors:
        return NeighborPairs.over(graph, workers)
    return AllPairs(workers) if stage.kind is AllToAll else None


def _asked(pairs: Pairs, workers: int, share: float) -> list[Leg]:
    """A request of some ranks to others, and the answers of these."""
    there, back = tuple(pairs), tuple((other, one) for one, other in pairs)
    asking, total, asked = {one for one, _ in there}, sum(pairs.values()), defaultdict[int, float](float)
    for (_, other), part in pairs.items():
        asked[other] += part * len(asking) / total
    each = share * workers / len(asking)  # bytes are those of an average over all, of whom some send none
    apart = asking.isdisjoint(asked)
    return [Leg(there, 1, each), Leg(back, 1, each * max(1.0, *asked.values()), True, apart)]
