"""The network of a plan: what stands between workers, and how collectives use it."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from relaxcomm.errors import TopologyError
from relaxcomm.network.link import Link
from relaxcomm.planner.pairs import NeighborPairs, Pair, ring_pairs, shares

_SLOW = 2.0  # times the fastest link's seconds, above which a link parts groups


@dataclass(frozen=True)
class Way:
    """How one kind of traffic uses the network.

    Args:
        seconds_per_byte: that the busiest link is occupied for each byte that a worker sends on average.
        latency_seconds: of the longest way between two that talk.
        busiest_bytes: through the busiest link, in one direction, for each of these bytes.
        burst_seconds: of what passes at once after a rest.
    """

    seconds_per_byte: float
    latency_seconds: float
    busiest_bytes: float
    burst_seconds: float = 0.0


class Links(ABC):
    """What stands between the workers."""

    uniform: bool
    """Whether all workers have the same."""

    @property
    def groups(self) -> list[list[int]] | None:
        """Workers in turn that have fast links to each other, and slow ones to others; None for no groups."""
        return None

    @property
    @abstractmethod
    def slowest(self) -> Link:
        """The slowest link."""

    @abstractmethod
    def way(self, pairs: Sequence[Pair] | None) -> Way:
        """How traffic uses it.

        Args:
            pairs: who sends to whom, each of a worker's pairs the same share of its bytes unless they say
                otherwise; None for a ring.
        """

    @abstractmethod
    def times(self, factor: float) -> Links:
        """The same with all links `factor` times as fast."""


@dataclass(frozen=True)
class OwnLinks(Links):
    """Every worker has a link of its own to a network that is faster than all of them.

    Args:
        link: of each.
    """

    link: Link

    uniform = True

    @property
    def slowest(self) -> Link:
        return self.link

    def way(self, pairs: Sequence[Pair] | None) -> Way:
        busiest = pairs.busiest if isinstance(pairs, NeighborPairs) else 1.0
        link = self.link
        return Way(busiest / link.bytes_per_second, link.latency_seconds, busiest, link.burst_seconds)

    def times(self, factor: float) -> OwnLinks:
        rate = self.link.bytes_per_second * factor
        return OwnLinks(replace(self.link, bytes_per_second=rate))


class GraphLinks(Links):
    """Workers are nodes of a graph, whose edges have a bandwidth and a latency; messages go the shortest way.

    Args:
        graph: over ranks 0 to N - 1, with `bandwidth` (bytes a second) and `latency` (seconds) at its edges,
            in each direction.
        otherwise: of edges that do not say.

    Raises: TopologyError for an edge of which nobody says how fast it is.
    """

    uniform = False

    def __init__(self, graph: Any, otherwise: Link | None) -> None:
        import networkx as nx

        self._graph: Any = nx.DiGraph()
        self._graph.add_nodes_from(graph.nodes)
        for one, other, facts in graph.to_directed().edges(data=True):
            self._graph.add_edge(one, other, link=_link(one, other, facts, otherwise))
        self._factor = 1.0
        self._ways: dict[Sequence[Pair] | None, tuple[float, float, float]] = {}

    @property
    def slowest(self) -> Link:
        links = [facts["link"] for _, _, facts in self._graph.edges(data=True)]
        found: Link = min(links, key=lambda link: link.bytes_per_second)
        return replace(found, bytes_per_second=found.bytes_per_second * self._factor)

    @property
    def groups(self) -> list[list[int]] | None:
        import networkx as nx

        taken = {(a, b): _seconds(facts["link"]) for a, b, facts in self._graph.edges(data=True)}
        limit = _SLOW * min(taken.values(), default=0.0)
        fast = nx.Graph([hop for hop, seconds in taken.items() if seconds <= limit])
        fast.add_nodes_from(self._graph.nodes)
        found = sorted(sorted(held) for held in nx.connected_components(fast))
        in_turn = [rank for held in found for rank in held] == list(range(len(self._graph)))
        return found if in_turn and 1 < len(found) < len(self._graph) else None

    def way(self, pairs: Sequence[Pair] | None) -> Way:
        kept = pairs if pairs is None or isinstance(pairs, NeighborPairs) else tuple(pairs)
        if kept not in self._ways:
            self._ways[kept] = self._routed(ring_pairs(len(self._graph)) if kept is None else kept)
        occupied, latency, busiest = self._ways[kept]
        return Way(occupied / self._factor, latency, busiest)

    def times(self, factor: float) -> GraphLinks:
        made = object.__new__(GraphLinks)
        vars(made).update(vars(self), _factor=self._factor * factor)  # routes are the same, and kept
        return made

    def _routed(self, pairs: Sequence[Pair]) -> tuple[float, float, float]:
        """Seconds of a byte on the busiest link of all routes, the longest latency, and that link's load."""
        load: Counter[Pair] = Counter()
        latency = 0.0
        routes = {one: self._shortest(one) for one in {one for one, _ in pairs}}
        for (one, other), share in zip(pairs, shares(pairs), strict=True):
            route = routes[one].get(other)
            if route is None:
                raise TopologyError(f"no link leads from rank {one} to rank {other}; add one to the graph")
            hops = list(itertools.pairwise(route))
            latency = max(latency, sum(self._graph.edges[hop]["link"].latency_seconds for hop in hops))
            for hop in hops:
                load[hop] += share  # type: ignore[assignment]  # Counter takes any number
        rates = {hop: self._graph.edges[hop]["link"].bytes_per_second for hop in load}
        busiest = max(load, key=lambda hop: load[hop] / rates[hop], default=None)
        if busiest is None:
            return 0.0, latency, 0.0
        return load[busiest] / rates[busiest], latency, load[busiest]

    def _shortest(self, rank: int) -> Mapping[int, Sequence[int]]:
        import networkx as nx

        def far(one: int, other: int, facts: Mapping[str, Any]) -> float:
            return float(facts["link"].latency_seconds) + 1e-9  # of two with no latency the shorter

        found: Mapping[int, Sequence[int]] = nx.single_source_dijkstra_path(self._graph, rank, weight=far)
        return found


def _seconds(link: Link) -> float:
    """Of a message of a megabyte."""
    return link.latency_seconds + 1e6 / link.bytes_per_second


def _link(one: int, other: int, facts: Mapping[str, float], otherwise: Link | None) -> Link:
    rate = facts.get("bandwidth", None if otherwise is None else otherwise.bytes_per_second)
    latency = facts.get("latency", 0.0 if otherwise is None else otherwise.latency_seconds)
    if rate is None or rate == 0:
        raise TopologyError(
            f"the link {one} to {other} has no bandwidth; give its edge one in bytes a second, or --links "
            "for those that have none"
        )
    return Link(latency_seconds=latency, bytes_per_second=rate)


def infinitely_fast(links: Links) -> bool:
    """Whether nothing is ever waited for."""
    return math.isinf(links.slowest.bytes_per_second)
