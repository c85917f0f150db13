"""Graphs that take turns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from relaxcomm.fields.frozen import frozen
from relaxcomm.topology.topology import Graph, Topology


@frozen
class in_turn(Topology):
    """One graph after the other: exchange k takes graph k modulo their number.

    Each alone may leave ranks apart, if all together link them.

    Args:
        topologies: at least two; one that changes itself goes on by one each time it has its turn.

    Example:
        >>> from relaxcomm.primitives import in_turn, ring, star
        >>> graphs = in_turn(topologies=[ring(), star()])
        >>> [graphs.listeners(rank=0, world_size=5, step=step) for step in range(3)]
        [[1, 4], [1, 2, 3, 4], [1, 4]]
    """

    topologies: Annotated[tuple[Topology, ...], Field(min_length=2, strict=False)]

    changes: ClassVar[bool] = True

    def graph(self, world_size: int, step: int = 0) -> Graph:
        turn, one = divmod(step, len(self.topologies))
        return self.topologies[one].graph(world_size, turn)

    def weights(self, world_size: int, step: int = 0) -> Mapping[int, Mapping[int, float]]:
        turn, one = divmod(step, len(self.topologies))
        return self.topologies[one].weights(world_size, turn)

    def period_steps(self, world_size: int) -> int:
        return len(self.topologies) * math.lcm(*(one.period_steps(world_size) for one in self.topologies))
