"""Pairs that are drawn anew in each round."""

import random
from typing import ClassVar

import networkx as nx

from relaxcomm import Topology
from relaxcomm.plugin import Index, Steps, frozen


@frozen
class drawn_pairs(Topology):
    """In each round every rank is linked to one other at most, drawn at random from a seed that all share.

    Args:
        rounds: after how many the pairs come again; so many link all ranks.
        seed: of the drawing.

    Example:
        >>> sorted(len(row) for row in drawn_pairs().weights(3).values())
        [1, 2, 2]
    """

    rounds: Steps = 64
    seed: Index = 0

    changes: ClassVar[bool] = True

    def graph(self, world_size: int, step: int = 0) -> nx.Graph:
        ranks = list(range(world_size))
        random.Random(f"{self.seed}/{step % self.rounds}").shuffle(ranks)
        graph = nx.empty_graph(world_size)
        graph.add_edges_from(zip(ranks[::2], ranks[1::2], strict=False))
        return graph

    def period_steps(self, world_size: int) -> int:
        return self.rounds
