"""Topologies whose links span powers of two, over which a mean spreads in few exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from relaxcomm.errors import TopologyError
from relaxcomm.fields.frozen import frozen
from relaxcomm.topology.topology import Graph, Topology


@frozen
class hypercube(Topology):
    """Ranks whose numbers differ in one bit are linked; 1, 2, 4, 8, … ranks.

    Raises: TopologyError for another number of ranks.

    Example:
        >>> from relaxcomm.primitives import hypercube
        >>> hypercube().listeners(rank=5, world_size=8)
        [1, 4, 7]
    """

    def graph(self, world_size: int, step: int = 0) -> Graph:
        import networkx as nx

        if world_size & (world_size - 1):
            below = 1 << (world_size.bit_length() - 1)
            raise TopologyError(
                f"hypercube needs a power of two, got {world_size} workers; use {below} or {2 * below}, or "
                "exponential, which takes any number"
            )
        made: Any = nx.empty_graph(world_size)
        bits = world_size.bit_length() - 1
        made.add_edges_from((rank, rank ^ (1 << bit)) for rank in range(world_size) for bit in range(bits))
        return made


@frozen
class exponential(Topology):
    """Rank i sends to i + 1, i + 2, i + 4, … (modulo N): directed, and balanced.

    Example:
        >>> from relaxcomm.primitives import exponential
        >>> exponential().listeners(rank=0, world_size=8)
        [1, 2, 4]

    Reference: Ying et al., "Exponential Graph is Provably Efficient for Decentralized Deep Training",
        NeurIPS 2021.
    """

    def graph(self, world_size: int, step: int = 0) -> Graph:
        return _circulant(world_size, [1 << bit for bit in range(_bits(world_size))])


@frozen
class one_peer_exponential(Topology):
    """At exchange t rank i sends to i + 2^(t mod ceil(log2 N)) alone, with weights of a half.

    With a power of two of ranks, log2 N exchanges in a row make the exact mean.

    Example:
        >>> from relaxcomm.primitives import one_peer_exponential
        >>> [one_peer_exponential().listeners(rank=0, world_size=8, step=step) for step in range(4)]
        [[1], [2], [4], [1]]

    Reference: Ying et al., "Exponential Graph is Provably Efficient for Decentralized Deep Training",
        NeurIPS 2021.
    """

    changes: ClassVar[bool] = True

    def graph(self, world_size: int, step: int = 0) -> Graph:
        bits = _bits(world_size)
        return _circulant(world_size, [1 << (step % bits)] if bits else [])

    def period_steps(self, world_size: int) -> int:
        return max(1, _bits(world_size))


def _bits(world_size: int) -> int:
    return (world_size - 1).bit_length()


def _circulant(world_size: int, distances: Sequence[int]) -> Graph:
    import networkx as nx

    made: Any = nx.empty_graph(world_size, create_using=nx.DiGraph)
    made.add_edges_from((i, (i + distance) % world_size) for i in range(world_size) for distance in distances)
    return made
