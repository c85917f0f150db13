"""Topologies from files and from graphs built in Python."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Hashable, Mapping
from numbers import Real
from typing import Any

from relaxcomm.errors import TopologyError
from relaxcomm.fields.frozen import frozen
from relaxcomm.fields.validation import shown
from relaxcomm.topology.graph_files import read_graph
from relaxcomm.topology.topology import Graph, Topology

_MEASURES = {"bandwidth": "bytes a second", "latency": "seconds"}

Edge = tuple[int, int, tuple[tuple[str, float], ...]]


@frozen
class custom(Topology):
    """A graph that was built elsewhere; made by `from_networkx`.

    Args:
        nodes: the ranks.
        edges: pairs of ranks, each with its attributes, such as `bandwidth` and `latency`.
        directed: whether a link goes one way.

    Example:
        >>> import networkx
        >>> from relaxcomm import from_networkx
        >>> from_networkx(networkx.path_graph(3)).listeners(rank=1, world_size=3)
        [0, 2]
    """

    nodes: tuple[int, ...]
    edges: tuple[Edge, ...]
    directed: bool = False

    def __repr__(self) -> str:
        return f"custom({len(self.nodes)} nodes, {len(self.edges)} links)"

    def graph(self, world_size: int, step: int = 0) -> Graph:
        import networkx as nx

        made: Any = nx.DiGraph() if self.directed else nx.Graph()
        made.add_nodes_from(self.nodes)
        made.add_edges_from((i, j, dict(attributes)) for i, j, attributes in self.edges)
        return made


@frozen
class file(Topology):
    """A graph from a file, read when it is first needed.

    The edges' attributes, such as `bandwidth` (bytes a second) and `latency` (seconds), stay with the
    graph.

    Args:
        path: of a GraphML file (`.graphml`) or an edge list (`.edgelist`, `.edges`: one `0 1` a line,
            attributes behind it as `{"bandwidth": 1e8}`).

    Raises: TopologyError for a file that cannot be read, or whose nodes are not numbers.

    Example:
        >>> import networkx
        >>> from relaxcomm.primitives import file
        >>> networkx.write_edgelist(networkx.path_graph(3), "sites.edgelist")
        >>> file(path="sites.edgelist").listeners(rank=1, world_size=3)
        [0, 2]
    """

    path: str

    def graph(self, world_size: int, step: int = 0) -> Graph:
        return self._content.graph(world_size, step)

    @functools.cached_property
    def _content(self) -> custom:
        graph = read_graph(self.path)
        try:
            return from_networkx(graph)
        except TopologyError as error:
            raise TopologyError(f"{self.path}: {error}") from None


def from_networkx(graph: Any) -> custom:
    """A topology from any networkx graph whose nodes are the ranks.

    Args:
        graph: a Graph or DiGraph with the nodes 0 to N - 1; numbers on its edges are kept.

    Raises: TopologyError if there are no nodes, they are not different numbers, an edge links a rank with
        itself, or its bandwidth or latency is not a number.

    Example:
        >>> import networkx
        >>> from relaxcomm import from_networkx
        >>> star = from_networkx(networkx.star_graph(2))
        >>> star.listeners(rank=0, world_size=3), star.listeners(rank=1, world_size=3)
        ([1, 2], [0])
    """
    if not len(getattr(graph, "nodes", ())):
        raise TopologyError(f"{graph!r} is no graph with nodes; give a networkx Graph or DiGraph")
    ranks = {node: _rank(node) for node in graph.nodes}
    if len(set(ranks.values())) < len(ranks):
        twice = next(node for node, rank in ranks.items() if list(ranks.values()).count(rank) > 1)
        raise TopologyError(
            f"rank {ranks[twice]} is the name of two nodes, one of them {twice!r}; name each once"
        )
    edges: dict[tuple[int, int], Edge] = {}
    for one, other, attributes in graph.edges(data=True):
        if one == other:
            raise TopologyError(f"node {one!r} is linked with itself; leave such links out, they are implied")
        ends = ranks[one], ranks[other]
        pair = ends if graph.is_directed() else (min(ends), max(ends))
        if pair in edges:
            raise TopologyError(f"nodes {one!r} and {other!r} are linked twice; keep one of the links")
        edges[pair] = (*ends, _numbers(one, other, attributes))
    nodes = tuple(sorted(ranks.values()))
    return custom(nodes=nodes, edges=tuple(sorted(edges.values())), directed=bool(graph.is_directed()))


def _rank(node: Hashable) -> int:
    found = re.fullmatch(r"n?([0-9]{1,9})", str(node))  # GraphML's own name for node 3 is n3
    if found is None:
        raise TopologyError(f"node {shown(node)} is not a rank; name the nodes 0 to N - 1")
    return int(found[1])


def _numbers(one: Hashable, other: Hashable, attributes: Mapping[Any, Any]) -> tuple[tuple[str, float], ...]:
    """An edge's attributes that are numbers, whoever made them; what the framework reads must be one."""
    kept = {str(k): _float(v) for k, v in attributes.items() if _is_number(v)}
    link = f"the link {one!r} to {other!r}"
    for name, unit in _MEASURES.items():
        if name in attributes and not 0 <= kept.get(name, math.nan) < math.inf:
            raise TopologyError(
                f"the {name} of {link} is {shown(attributes[name])}; give a number of {unit}, 0 or more (in "
                "GraphML, attr.type double)"
            )
    for name, number in kept.items():
        if not math.isfinite(number):
            raise TopologyError(f"the {shown(name)} of {link} is {number}; give a finite number")
    return tuple(sorted(kept.items()))


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real)
