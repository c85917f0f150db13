"""What a topology is: a graph of the ranks, maybe another one at each exchange, with mixing weights."""

from __future__ import annotations

import functools
import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from relaxcomm.errors import PluginError, TopologyError
from relaxcomm.fields.frozen import Declared
from relaxcomm.fields.looked_at import Looks
from relaxcomm.fields.validation import shown
from relaxcomm.topology import answers, connectivity, mixing, weight_checks

Graph: TypeAlias = Any
"""A networkx Graph over the ranks 0 to N - 1, a DiGraph where links have a direction. (The stubs' type
parameters change from version to version.)"""

_LATER = range(1, 4)
"""Exchanges at which the weights of one that stays are looked at again."""


class Topology(Declared):
    """Base of all topologies. Subclasses are made with `@frozen`, so that they can be compared and hashed.

    Facts:
        all_pairs: every rank is linked to every other, at any world size.
        has_groups: the ranks are divided into groups.
        changes: another graph may follow at the next exchange; `period_steps` then says when they come again.

    Raises: PluginError for one that changes and does not say when its graphs come again.

    Example:
        >>> import networkx
        >>> from relaxcomm import Topology
        >>> from relaxcomm.plugin import frozen
        >>> @frozen
        ... class line(Topology):
        ...     def graph(self, world_size, step=0):
        ...         return networkx.path_graph(world_size)
        >>> line().listeners(rank=1, world_size=4), line().spectral_gap(4) < 0.2
        ([0, 2], True)
    """

    role: ClassVar[str] = "topology"
    all_pairs: ClassVar[bool] = False
    has_groups: ClassVar[bool] = False
    changes: ClassVar[bool] = False
    looks: ClassVar[Looks] = {"period_steps": answers.whole, "listeners": answers.others}

    def __post_init__(self) -> None:
        if self.changes and type(self).period_steps is Topology.period_steps:
            raise PluginError(
                f"topology {type(self).__name__} declares changes = True, and without period_steps only its "
                "first graph would be used; define period_steps(self, world_size), the exchanges after which "
                "the graphs come again: for graphs that are drawn anew for ever, draw some, such as 64"
            )

    @abstractmethod
    def graph(self, world_size: int, step: int = 0) -> Graph:
        """The graph at an exchange; `step` counts those of a bucket, not the optimizer's steps.

        Raises: TopologyError for a world size that it cannot have.
        """

    def period_steps(self, world_size: int) -> int:
        """After how many exchanges the graphs come again; 1 for one that stays."""
        return 1

    def groups(self, world_size: int) -> Sequence[Sequence[int]]:
        """The ranks of each group, each rank in one; all ranks are one group unless told otherwise."""
        return [list(range(world_size))]

    def weights(self, world_size: int, step: int = 0) -> Mapping[int, Mapping[int, float]]:
        """Mixing weights of an exchange: `weights[i][j]` is how much rank i takes of j, itself among them.

        Over all i they sum to 1, and unless they are for push-sum over all j, too.
        """
        key = world_size, step % self.period_steps(world_size)
        if key not in self._weights:
            self._weights[key] = mixing.weights(self.graph(*key), repr(self))
        return self._weights[key]

    def listeners(self, rank: int, world_size: int, step: int = 0) -> Sequence[int]:
        """The other ranks that take of `rank` at an exchange, in ascending order."""
        key = rank, world_size, step % self.period_steps(world_size)
        if key not in self._listeners:
            self._listeners[key] = mixing.listeners_of(self.weights(world_size, step), rank)
        return self._listeners[key]

    def sides(self, world_size: int) -> tuple[Sequence[int], Sequence[int]]:
        """The ranks in two sets, rank 0 in the first, so that each link is between one and the other.

        Raises: TopologyError if there are none, or links have a direction.
        """
        import networkx as nx

        if world_size not in self._sides:
            graph = self.graph(world_size)
            if nx.is_directed(graph) or not nx.is_bipartite(graph):
                raise TopologyError(
                    f"{self!r} with {world_size} workers is not bipartite: its ranks do not fall into two "
                    "sets with links only from one to the other; use complete, grid, star or hypercube, or a "
                    "ring of an even number"
                )
            colors = nx.bipartite.color(graph)
            self._sides[world_size] = (
                [rank for rank in sorted(graph) if colors[rank] == colors[0]],
                [rank for rank in sorted(graph) if colors[rank] != colors[0]],
            )
        return self._sides[world_size]

    def matrix(self, world_size: int, step: int = 0) -> NDArray[np.float64]:
        """The mixing matrix W of an exchange, `[N, N]`; rows and columns sum to 1."""
        return mixing.as_matrix(self.weights(world_size, step), world_size)

    def spectral_gap(self, world_size: int) -> float:
        """One minus W's second largest singular value, an eigenvalue's modulus if W is symmetric.

        After k exchanges the replicas' distance from their mean is at most `(1 - gap)^k` of what it was.
        For graphs that change it is an exchange's share of a whole period's, and k a multiple of the period.
        """
        shrinks = mixing.contraction(self._product(world_size))
        return 1.0 - float(shrinks ** (1 / self.period_steps(world_size)))

    def links(self, world_size: int) -> float:
        """Messages that all ranks together send at an exchange, on average over a period."""
        steps = range(self.period_steps(world_size))
        return sum(mixing.entries_of(self.weights(world_size, step)).num_links for step in steps) / len(steps)

    def check(self, world_size: int, *, balanced: bool = True) -> None:
        """Refuse a graph over which the ranks would never agree on their mean, and groups that lack some.

        Args:
            world_size: number of ranks.
            balanced: whether plain mixing must keep the mean; push-sum needs no more than that each
                rank hands out all that it has, and reaches all.

        Raises: TopologyError, saying what is wrong with the graph, its weights or groups and what to do.
        """
        links, reach_is_enough = [], True
        for step in range(self.period_steps(world_size)):
            rows = self.weights(world_size, step)
            if not isinstance(rows, Mapping) or set(rows) != set(range(world_size)):
                nodes = connectivity.listed(rows) if isinstance(rows, Mapping) else shown(rows)
                raise TopologyError(
                    f"{self!r} has the nodes {nodes}, but {world_size} workers are the "
                    f"nodes 0 to {world_size - 1}; use as many workers as nodes, named by their rank"
                )
            entries = mixing.entries_of(rows)
            graph = None if isinstance(rows, mixing.Rows) else self.graph(world_size, step)
            weight_checks.check(entries, world_size, repr(self), balanced=balanced, graph=graph)
            heard = entries.shares != 0
            links.append((entries.takers[heard], entries.givers[heard]))
            reach_is_enough = reach_is_enough and entries.are_positive
        takers, givers = (np.concatenate(ends) for ends in zip(*links, strict=True))
        connectivity.check(takers, givers, world_size, repr(self))
        if not reach_is_enough:
            product = self._product(world_size)
            takers, givers = np.nonzero(product)
            connectivity.check(takers, givers, world_size, repr(self))
            weight_checks.check_period(product, repr(self))
        self._check_stays(world_size)
        self.check_groups(world_size)

    def check_groups(self, world_size: int) -> None:
        """Refuse groups that do not hold each rank once.

        Raises: TopologyError, naming the groups.
        """
        connectivity.check_groups(self.groups(world_size), world_size, repr(self))

    def _check_stays(self, world_size: int) -> None:
        """Refuse one that changes and does not say so: what keeps its neighbours' values counts on that."""
        first = self.weights(world_size)
        for step in () if self.changes else _LATER:
            later = self.weights(world_size, step)
            if later is not first and later != first:
                raise TopologyError(
                    f"{self!r} declares changes = False, but with {world_size} workers its weights at "
                    f"exchange {step} are not those of exchange 0; declare changes: ClassVar[bool] = True, "
                    "and let period_steps say when they come again"
                )

    def describe(self, world_size: int) -> str:
        """Short text for ranks to compare: it differs if the topology, its weights or its groups do."""
        digest, links = hashlib.sha256(repr(self.groups(world_size)).encode()), 0
        for step in range(self.period_steps(world_size)):
            entries = mixing.entries_of(self.weights(world_size, step))
            links += entries.num_links
            for part in (entries.takers, entries.givers, entries.shares):
                digest.update(part.tobytes())
        return f"{self!r} with {links} links, digest {digest.hexdigest()[:12]}"

    def _product(self, world_size: int) -> NDArray[np.float64]:
        """The mixing of a whole period."""
        product = np.eye(world_size)
        for step in range(self.period_steps(world_size)):
            product = self.matrix(world_size, step) @ product
        return product

    # Kept with the instance, so that a topology made afresh from a file that has changed starts afresh.
    @functools.cached_property
    def _weights(self) -> dict[tuple[int, int], mixing.Weights]:
        return {}

    @functools.cached_property
    def _sides(self) -> dict[int, tuple[Sequence[int], Sequence[int]]]:
        return {}

    @functools.cached_property
    def _listeners(self) -> dict[tuple[int, int, int], Sequence[int]]:
        return {}
