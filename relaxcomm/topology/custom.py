"""Topologies from files and from graphs built in Python."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import networkx as nx

from relaxcomm.errors import TopologyError
from relaxcomm.fields.frozen import frozen
from relaxcomm.topology.topology import Graph, Topology

_MEASURES = {"bandwidth": "bytes a second", "latency": "seconds"}

Edge = tuple[int, int, tuple[tuple[str, float], ...]]

_READERS: dict[str, Callable[[Path], Any]] = {
    ".graphml": nx.read_graphml,
    ".edgelist": nx.read_edgelist,
    ".edges": nx.read_edgelist,
}


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
        return _read(self.path)


def from_networkx(graph: Any) -> custom:
    """A topology from any networkx graph whose nodes are the ranks.

    Args:
        graph: a Graph or DiGraph with the nodes 0 to N - 1; numbers on its edges are kept.

    Raises: TopologyError if nodes are not different numbers, an edge links a rank with itself, or its
        bandwidth or latency is not a number.

    Example:
        >>> import networkx
        >>> from relaxcomm import from_networkx
        >>> star = from_networkx(networkx.star_graph(2))
        >>> star.listeners(rank=0, world_size=3), star.listeners(rank=1, world_size=3)
        ([1, 2], [0])
    """
    ranks = {node: _rank(node) for node in graph.nodes}
    if len(set(ranks.values())) < len(ranks):
        twice = next(node for node, rank in ranks.items() if list(ranks.values()).count(rank) > 1)
        raise TopologyError(
            f"rank {ranks[twice]} is the name of two nodes, one of them {twice!r}; name each once"
        )
    edges = []
    for one, other, attributes in graph.edges(data=True):
        if one == other:
            raise TopologyError(f"node {one!r} is linked with itself; leave such links out, they are implied")
        edges.append((ranks[one], ranks[other], _numbers(one, other, attributes)))
    nodes = tuple(sorted(ranks.values()))
    return custom(nodes=nodes, edges=tuple(sorted(edges)), directed=bool(graph.is_directed()))


def _read(path: str) -> custom:
    place = Path(path)
    reader = _READERS.get(place.suffix)
    if reader is None:
        raise TopologyError(f"{path}: a topology file ends in {', '.join(sorted(_READERS))}")
    try:
        return from_networkx(reader(place))
    except OSError as error:
        raise TopologyError(f"cannot read the topology {path}: {error.strerror}") from None
    except TopologyError as error:
        raise TopologyError(f"{path}: {error}") from None
    except Exception as error:  # networkx raises whatever its parsers do
        raise TopologyError(f"{path} is not a graph: {type(error).__name__}: {error}") from None


def _rank(node: Hashable) -> int:
    try:
        return int(str(node).removeprefix("n"))  # GraphML's own name for node 3 is n3
    except ValueError:
        raise TopologyError(f"node {node!r} is not a rank; name the nodes 0 to N - 1") from None


def _numbers(one: Hashable, other: Hashable, attributes: Mapping[Any, Any]) -> tuple[tuple[str, float], ...]:
    """An edge's attributes that are numbers, whoever made them; what the framework reads must be one."""
    kept = {str(k): float(v) for k, v in attributes.items() if _is_number(v)}
    for name in _MEASURES:
        if name in attributes and not 0 <= kept.get(name, math.nan) < math.inf:
            raise TopologyError(
                f"the {name} of the link {one!r} to {other!r} is {attributes[name]!r}; give a number of "
                f"{_MEASURES[name]}, 0 or more (in GraphML, attr.type double)"
            )
    return tuple(sorted(kept.items()))


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real)
