"""Topologies that are drawn at random, from a seed that all ranks share."""

from __future__ import annotations

import random
from typing import ClassVar

from relaxcomm.errors import TopologyError
from relaxcomm.fields.frozen import Index, Share, Steps, frozen
from relaxcomm.topology.topology import Graph, Topology


@frozen
class random_regular(Topology):
    """A random graph in which every rank has the same number of links.

    Args:
        degree: links of a rank; degree times N must be even.
        seed: of the random graph, the same on all ranks.

    Raises: TopologyError for a number of ranks that cannot have it.

    Example:
        >>> from relaxcomm.primitives import random_regular
        >>> {len(random_regular(degree=3).listeners(rank, world_size=8)) for rank in range(8)}
        {3}
    """

    degree: Steps
    seed: Index = 0

    def graph(self, world_size: int, step: int = 0) -> Graph:
        import networkx as nx

        if self.degree >= world_size or self.degree * world_size % 2:
            raise TopologyError(
                f"random_regular(degree={self.degree}) cannot have {world_size} workers: the degree must be "
                "below their number, and the product of the two even"
            )
        return nx.random_regular_graph(self.degree, world_size, seed=self.seed)


@frozen
class erdos_renyi(Topology):
    """A random graph in which each pair of ranks is linked with a probability.

    Args:
        probability: of a link, in (0, 1].
        seed: of the random graph, the same on all ranks.

    Example:
        >>> from relaxcomm.primitives import erdos_renyi
        >>> erdos_renyi(probability=0.5).links(6), erdos_renyi(probability=1.0).links(6)
        (12.0, 30.0)
    """

    probability: Share
    seed: Index = 0

    def graph(self, world_size: int, step: int = 0) -> Graph:
        import networkx as nx

        return nx.gnp_random_graph(world_size, self.probability, seed=self.seed)


@frozen
class random_pairs(Topology):
    """Pairs that are drawn anew for each exchange; of an odd number of ranks one stays alone.

    Args:
        rounds: after how many exchanges the pairs come again; so many link all ranks.
        seed: of the drawing, the same on all ranks.

    Example:
        >>> from relaxcomm.primitives import random_pairs
        >>> [random_pairs().listeners(rank=0, world_size=4, step=step) for step in range(4)]
        [[3], [1], [1], [1]]

    Reference: Boyd et al., "Randomized Gossip Algorithms", IEEE Transactions on Information Theory 2006.
    """

    rounds: Steps = 64
    seed: Index = 0

    changes: ClassVar[bool] = True

    def graph(self, world_size: int, step: int = 0) -> Graph:
        import networkx as nx

        ranks = list(range(world_size))
        random.Random(f"{self.seed}/{step % self.rounds}").shuffle(ranks)
        graph = nx.empty_graph(world_size)
        graph.add_edges_from(zip(ranks[::2], ranks[1::2], strict=False))
        return graph

    def period_steps(self, world_size: int) -> int:
        return self.rounds
