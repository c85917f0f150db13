"""Topologies by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import networkx as nx
from pydantic import Field

from relaxcomm.errors import TopologyError
from relaxcomm.frozen import Index, Share, Steps, frozen
from relaxcomm.topology.base import Graph, Topology, by_distance


@frozen
class complete(Topology):
    """Every rank is linked to every other.

    Example:
        >>> complete().spectral_gap(4)
        1.0
    """

    all_pairs: ClassVar[bool] = True

    def graph(self, world_size: int, step: int = 0) -> Graph:
        return nx.complete_graph(world_size)

    def check(self, world_size: int, *, balanced: bool = True) -> None:
        """Nothing to refuse; at a thousand ranks, to look would take seconds."""

    def sides(self, world_size: int) -> tuple[Sequence[int], Sequence[int]]:
        """The even ranks and the odd ones, although ranks of one side are linked, too."""
        return range(0, world_size, 2), range(1, world_size, 2)

    def describe(self, world_size: int) -> str:
        return repr(self)


@frozen
class ring(Topology):
    """Each rank is linked to the next and the one before.

    Example:
        >>> sorted(ring().weights(4)[0])
        [0, 1, 3]
    """

    def graph(self, world_size: int, step: int = 0) -> Graph:
        made: Any = nx.cycle_graph(world_size)
        made.remove_edges_from(list(nx.selfloop_edges(made)))
        return made


@frozen
class star(Topology):
    """Rank 0 is linked to all others.

    Example:
        >>> sorted(star().weights(4)[2])
        [0, 2]
    """

    def graph(self, world_size: int, step: int = 0) -> Graph:
        return nx.star_graph(world_size - 1)

    def places(self, world_size: int) -> Mapping[int, tuple[float, float]]:
        around = super().places(max(1, world_size - 1))
        return {0: (0.0, 0.0), **{rank + 1: place for rank, place in around.items() if rank + 1 < world_size}}


@frozen
class grid(Topology):
    """A rectangle as nearly square as the number of ranks allows; a prime number makes a line.

    Example:
        >>> sorted(grid().weights(6)[0])
        [0, 1, 3]
    """

    def graph(self, world_size: int, step: int = 0) -> Graph:
        return _rectangle(world_size, periodic=False)

    def places(self, world_size: int) -> Mapping[int, tuple[float, float]]:
        return _lattice(world_size)


@frozen
class torus(Topology):
    """A rectangle whose opposite sides are linked; a prime number of ranks makes a ring.

    Example:
        >>> len(torus().weights(16)[0])
        5
    """

    def graph(self, world_size: int, step: int = 0) -> Graph:
        return _rectangle(world_size, periodic=True)

    def places(self, world_size: int) -> Mapping[int, tuple[float, float]]:
        return super().places(world_size) if _rows(world_size) == 1 else _lattice(world_size)


@frozen
class hypercube(Topology):
    """Ranks whose numbers differ in one bit are linked; 1, 2, 4, 8, … ranks.

    Raises: TopologyError for another number of ranks.

    Example:
        >>> sorted(hypercube().weights(8)[0])
        [0, 1, 2, 4]
    """

    def graph(self, world_size: int, step: int = 0) -> Graph:
        if world_size & (world_size - 1):
            below = 1 << (world_size.bit_length() - 1)
            raise TopologyError(
                f"hypercube needs a power of two, got {world_size} workers; use {below} or {2 * below}, or "
                "exponential, which takes any number"
            )
        made: Any = nx.Graph()
        made.add_nodes_from(range(world_size))
        bits = world_size.bit_length() - 1
        made.add_edges_from((rank, rank ^ (1 << bit)) for rank in range(world_size) for bit in range(bits))
        return made

    def places(self, world_size: int) -> Mapping[int, tuple[float, float]]:
        place = {0: 0j}
        for bit in range(world_size.bit_length() - 1):
            # A cube of cubes, each level larger and turned a little, so that links do not hide each other.
            way = (1, 1j, 0.42 + 0.34j)[bit % 3] * (2.6 + 0.5j) ** (bit // 3)
            place |= {rank | 1 << bit: at + way for rank, at in place.items()}
        return {rank: (at.real, at.imag) for rank, at in place.items()}


@frozen
class exponential(Topology):
    """Rank i sends to i + 1, i + 2, i + 4, … (modulo N): directed, and balanced.

    Example:
        >>> sorted(exponential().graph(8).successors(0))
        [1, 2, 4]

    Reference: Ying et al., "Exponential Graph is Provably Efficient for Decentralized Deep Training",
        NeurIPS 2021.
    """

    def graph(self, world_size: int, step: int = 0) -> Graph:
        return _circulant(world_size, [1 << bit for bit in range(_bits(world_size))])


@frozen
class one_peer_exponential(Topology):
    """In step t rank i sends to i + 2^(t mod ceil(log2 N)) alone, with weights of a half.

    With a power of two of ranks, log2 N steps in a row make the exact mean.

    Example:
        >>> one_peer_exponential().weights(8, step=2)[4]
        {0: 0.5, 4: 0.5}

    Reference: Ying et al., "Exponential Graph is Provably Efficient for Decentralized Deep Training",
        NeurIPS 2021.
    """

    changes: ClassVar[bool] = True

    def graph(self, world_size: int, step: int = 0) -> Graph:
        bits = _bits(world_size)
        return _circulant(world_size, [1 << (step % bits)] if bits else [])

    def period_steps(self, world_size: int) -> int:
        return max(1, _bits(world_size))


@frozen
class random_regular(Topology):
    """A random graph in which every rank has the same number of links.

    Args:
        degree: links of a rank; degree times N must be even.
        seed: of the random graph, the same on all ranks.

    Raises: TopologyError for a number of ranks that cannot have it.

    Example:
        >>> len(random_regular(degree=3).weights(8)[0])
        4
    """

    degree: Steps
    seed: Index = 0

    def graph(self, world_size: int, step: int = 0) -> Graph:
        if self.degree >= world_size or self.degree * world_size % 2:
            raise TopologyError(
                f"random_regular(degree={self.degree}) cannot have {world_size} workers: the degree must be "
                "below their number, and the product of the two even"
            )
        return nx.random_regular_graph(self.degree, world_size, seed=self.seed)

    def places(self, world_size: int) -> Mapping[int, tuple[float, float]]:
        return by_distance(self.graph(world_size))


@frozen
class erdos_renyi(Topology):
    """A random graph in which each pair of ranks is linked with a probability.

    Args:
        probability: of a link, in (0, 1].
        seed: of the random graph, the same on all ranks.

    Example:
        >>> erdos_renyi(probability=1.0).spectral_gap(5)
        1.0
    """

    probability: Share
    seed: Index = 0

    def graph(self, world_size: int, step: int = 0) -> Graph:
        return nx.gnp_random_graph(world_size, self.probability, seed=self.seed)

    def places(self, world_size: int) -> Mapping[int, tuple[float, float]]:
        return by_distance(self.graph(world_size))


@frozen
class hierarchical(Topology):
    """Groups of ranks, such as those of one machine, that are linked inside and through their first ranks.

    Args:
        sizes: number of ranks in each group, in the order of the ranks; or one number for all groups,
            of which the last then holds what is left.

    Raises: TopologyError if a list of sizes does not add up to the number of workers.

    Example:
        >>> hierarchical(sizes=(2, 3)).groups(5)
        [[0, 1], [2, 3, 4]]
        >>> hierarchical(sizes=2).groups(5)
        [[0, 1], [2, 3], [4]]
    """

    sizes: Steps | Annotated[tuple[Steps, ...], Field(min_length=1, strict=False)]

    has_groups: ClassVar[bool] = True

    def groups(self, world_size: int) -> Sequence[Sequence[int]]:
        if isinstance(self.sizes, int):
            ranks = range(world_size)
            return [list(ranks[start : start + self.sizes]) for start in ranks[:: self.sizes]]
        if sum(self.sizes) != world_size:
            raise TopologyError(
                f"hierarchical groups of {list(self.sizes)} hold {sum(self.sizes)} ranks, but there are "
                f"{world_size} workers; give sizes that add up to {world_size}, or one number for all groups"
            )
        starts = [sum(self.sizes[:index]) for index in range(len(self.sizes))]
        return [list(range(start, start + size)) for start, size in zip(starts, self.sizes, strict=True)]

    def graph(self, world_size: int, step: int = 0) -> Graph:
        made: Any = nx.Graph()
        groups = self.groups(world_size)
        for group in [*groups, [group[0] for group in groups]]:
            made.add_nodes_from(group)
            made.add_edges_from((i, j) for i in group for j in group if i < j)
        return made

    def places(self, world_size: int) -> Mapping[int, tuple[float, float]]:
        return by_distance(self.graph(world_size))


def _bits(world_size: int) -> int:
    return (world_size - 1).bit_length()


def _circulant(world_size: int, distances: Sequence[int]) -> Graph:
    made: Any = nx.DiGraph()
    made.add_nodes_from(range(world_size))
    made.add_edges_from((i, (i + distance) % world_size) for i in range(world_size) for distance in distances)
    return made


def _rows(world_size: int) -> int:
    """How many rows the most nearly square rectangle has."""
    return next(rows for rows in range(math.isqrt(world_size), 0, -1) if world_size % rows == 0)


def _rectangle(world_size: int, *, periodic: bool) -> Graph:
    rows = _rows(world_size)
    made: Any = nx.grid_2d_graph(rows, world_size // rows, periodic=periodic)
    made.remove_edges_from(list(nx.selfloop_edges(made)))  # a side of one rank is next to itself
    return nx.convert_node_labels_to_integers(made, ordering="sorted")


def _lattice(world_size: int) -> Mapping[int, tuple[float, float]]:
    columns = world_size // _rows(world_size)
    return {rank: (rank % columns, -(rank // columns)) for rank in range(world_size)}
