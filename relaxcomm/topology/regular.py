"""Topologies of everyday shapes: all pairs, rings, stars and rectangles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from relaxcomm.fields.frozen import frozen
from relaxcomm.topology.mixing import EqualRows
from relaxcomm.topology.topology import Graph, Topology


@frozen
class complete(Topology):
    """Every rank is linked to every other.

    Example:
        >>> from relaxcomm.primitives import complete
        >>> complete().listeners(rank=0, world_size=4), complete().spectral_gap(4)
        ([1, 2, 3], 1.0)
    """

    all_pairs: ClassVar[bool] = True

    def graph(self, world_size: int, step: int = 0) -> Graph:
        import networkx as nx

        return nx.complete_graph(world_size)

    def weights(self, world_size: int, step: int = 0) -> Mapping[int, Mapping[int, float]]:
        return EqualRows(world_size)  # of its links nobody needs more than the own ones

    def links(self, world_size: int) -> float:
        return float(world_size * (world_size - 1))

    def check(self, world_size: int, *, balanced: bool = True) -> None:
        """Nothing to refuse."""

    def sides(self, world_size: int) -> tuple[Sequence[int], Sequence[int]]:
        """The even ranks and the odd ones, although ranks of one side are linked, too."""
        return range(0, world_size, 2), range(1, world_size, 2)

    def describe(self, world_size: int) -> str:
        return repr(self)


@frozen
class ring(Topology):
    """Each rank is linked to the next and the one before.

    Example:
        >>> from relaxcomm.primitives import ring
        >>> ring().listeners(rank=0, world_size=5)
        [1, 4]
    """

    def graph(self, world_size: int, step: int = 0) -> Graph:
        import networkx as nx

        made: Any = nx.cycle_graph(world_size)
        made.remove_edges_from(list(nx.selfloop_edges(made)))
        return made


@frozen
class star(Topology):
    """Rank 0 is linked to all others.

    Example:
        >>> from relaxcomm.primitives import star
        >>> star().listeners(rank=0, world_size=4), star().listeners(rank=2, world_size=4)
        ([1, 2, 3], [0])
    """

    def graph(self, world_size: int, step: int = 0) -> Graph:
        import networkx as nx

        return nx.star_graph(world_size - 1)


@frozen
class grid(Topology):
    """A rectangle as nearly square as the number of ranks allows; a prime number makes a line.

    Example:
        >>> from relaxcomm.primitives import grid
        >>> grid().listeners(rank=0, world_size=6), grid().listeners(rank=1, world_size=6)
        ([1, 3], [0, 2, 4])
    """

    def graph(self, world_size: int, step: int = 0) -> Graph:
        return _rectangle(world_size, periodic=False)


@frozen
class torus(Topology):
    """A rectangle whose opposite sides are linked; a prime number of ranks makes a ring.

    Example:
        >>> from relaxcomm.primitives import torus
        >>> torus().listeners(rank=0, world_size=9)
        [1, 2, 3, 6]
    """

    def graph(self, world_size: int, step: int = 0) -> Graph:
        return _rectangle(world_size, periodic=True)


def _rectangle(world_size: int, *, periodic: bool) -> Graph:
    """A grid or torus as nearly square as the number of ranks allows."""
    import networkx as nx

    rows = next(rows for rows in range(math.isqrt(world_size), 0, -1) if world_size % rows == 0)
    made: Any = nx.grid_2d_graph(rows, world_size // rows, periodic=periodic)
    made.remove_edges_from(list(nx.selfloop_edges(made)))  # a side of one rank is next to itself
    return nx.convert_node_labels_to_integers(made, ordering="sorted")
