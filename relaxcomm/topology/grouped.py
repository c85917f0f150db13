"""Topologies of groups of ranks, such as those of one machine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Annotated, ClassVar

from pydantic import Field

from relaxcomm.errors import TopologyError
from relaxcomm.fields.frozen import Steps, frozen
from relaxcomm.topology.topology import Graph, Topology


@frozen
class hierarchical(Topology):
    """Groups of ranks, such as those of one machine, that are linked inside and through their first ranks.

    Args:
        sizes: number of ranks in each group, in the order of the ranks; or one number for all groups,
            of which the last then holds what is left.

    Raises: TopologyError if a list of sizes does not add up to the number of workers.

    Example:
        >>> from relaxcomm.primitives import hierarchical
        >>> hierarchical(sizes=(2, 3)).groups(5), hierarchical(sizes=2).groups(5)
        ([[0, 1], [2, 3, 4]], [[0, 1], [2, 3], [4]])
        >>> hierarchical(sizes=(2, 3)).listeners(rank=2, world_size=5)
        [0, 3, 4]
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
        return [list(range(*ends)) for ends in pairwise(accumulate(self.sizes, initial=0))]

    def graph(self, world_size: int, step: int = 0) -> Graph:
        import networkx as nx

        groups = self.groups(world_size)
        return nx.compose_all(map(nx.complete_graph, [*groups, [group[0] for group in groups]]))
