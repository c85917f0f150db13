"""Mixing weights: how much of each neighbour's parameters a rank takes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relaxcomm.errors import PluginError
from relaxcomm.fields.validation import shown

Weights = Mapping[int, Mapping[int, float]]
_Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Entries:
    """A mixing matrix's entries that are not left out, each once.

    Args:
        takers, givers: rows and columns, `[n]`.
        shares: `W[taker, giver]`, `[n]`.
    """

    takers: _Numbers
    givers: _Numbers
    shares: NDArray[np.float64]

    @property
    def num_links(self) -> int:
        """How many are of two ranks."""
        return int(np.count_nonzero(self.takers != self.givers))

    @property
    def are_positive(self) -> bool:
        """Whether no share is negative, and none of a rank in itself 0: those who hear of each other then
        come to agree."""
        return bool((self.shares >= 0).all() and (self.shares[self.takers == self.givers] > 0).all())


class Rows(Mapping[int, Mapping[int, float]]):
    """Mixing weights of which a row is made when it is asked for: a rank needs no more than its own.

    Args:
        nodes: the ranks, in ascending order.
    """

    def __init__(self, nodes: Sequence[int]) -> None:
        self._nodes = nodes

    def __iter__(self) -> Iterator[int]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    @abstractmethod
    def entries(self) -> Entries:
        """All of them at once, for checks; as arrays, since a thousand ranks may have a million."""

    @abstractmethod
    def listeners(self, rank: int) -> Sequence[int]:
        """The other ranks that take of `rank`, in ascending order."""


class EqualRows(Rows):
    """The Metropolis-Hastings weights where every rank is linked to every other.

    Args:
        world_size: number of ranks.
    """

    def __init__(self, world_size: int) -> None:
        super().__init__(range(world_size))

    def __getitem__(self, rank: int) -> Mapping[int, float]:
        if rank not in self._nodes:
            raise KeyError(rank)
        row = dict.fromkeys(self.listeners(rank), 1 / len(self))
        return {rank: 1 - sum(row.values()), **row}

    def entries(self) -> Entries:
        size, ranks = len(self), np.arange(len(self))
        return Entries(np.repeat(ranks, size), np.tile(ranks, size), np.full(size**2, 1 / size))

    def listeners(self, rank: int) -> Sequence[int]:
        return [other for other in self._nodes if other != rank]


class _GraphRows(Rows):
    """The rows of a graph; links of a rank with itself are left out, since it takes of itself anyway."""

    def __init__(self, graph: Any) -> None:
        super().__init__(sorted(graph.nodes))
        self._is_directed = bool(graph.is_directed())
        links = dict(graph.adjacency())
        counts = [len(linked) for linked in links.values()]
        givers = np.repeat(np.fromiter(links, np.int64, len(links)), counts)
        takers = np.fromiter(chain.from_iterable(links.values()), np.int64, len(givers))
        apart = givers != takers
        givers, takers = givers[apart], takers[apart]
        order = np.lexsort((givers, takers))
        self._takers, self._givers = takers[order], givers[order]
        others = np.bincount(np.searchsorted(self._nodes, givers), minlength=len(self._nodes))
        self._degrees: dict[int, int] = dict(zip(self._nodes, others.tolist(), strict=True))

    def __getitem__(self, rank: int) -> Mapping[int, float]:
        degrees, mine = self._degrees, self._degrees[rank]
        begin, end = np.searchsorted(self._takers, (rank, rank + 1))
        linked: list[int] = self._givers[begin:end].tolist()
        if self._is_directed:
            return {other: 1 / (1 + degrees[other]) for other in sorted((*linked, rank))}
        row = {other: 1 / (1 + max(mine, degrees[other])) for other in linked}
        return {rank: 1 - sum(row.values()), **row}

    def entries(self) -> Entries:
        nodes = np.array(self._nodes, dtype=np.int64)
        degree = np.array(list(self._degrees.values()), dtype=np.int64)
        taker, giver = (np.searchsorted(nodes, ranks) for ranks in (self._takers, self._givers))
        parts = 1 + (degree[giver] if self._is_directed else np.maximum(degree[taker], degree[giver]))
        shares = 1 / parts
        own = 1 / (1 + degree) if self._is_directed else 1 - np.bincount(taker, shares, len(nodes))
        takers, givers = np.concatenate([nodes, self._takers]), np.concatenate([nodes, self._givers])
        return Entries(takers, givers, np.concatenate([own, shares]))

    def listeners(self, rank: int) -> Sequence[int]:
        found: list[int] = self._takers[self._givers == rank].tolist()
        return found


def weights(graph: Any, name: str) -> Rows:
    """Metropolis-Hastings weights of an undirected graph, uniform ones of a directed graph.

    Undirected: `W_ij = 1 / (1 + max(deg i, deg j))` over an edge, `W_ii = 1 - sum_j W_ij`: symmetric and
    doubly stochastic whatever the graph. Directed: each rank sends equal parts to itself and along
    its links, `W_ji = 1 / (1 + outdegree i)`, which is doubly stochastic only if all ranks have as many
    links in as out, and all the same number.

    Args:
        graph: over the ranks.
        name: of the topology whose it is, for the error.

    Returns: `weights[i][j]`, with i itself.

    Raises: PluginError for what is no graph.

    Reference: Xiao and Boyd, "Fast linear iterations for distributed averaging", 2004.
    """
    if not hasattr(graph, "adjacency"):
        wanted = "return a networkx Graph or DiGraph over the ranks 0 to world_size - 1"
        raise PluginError(f"graph of {name} returned {shown(graph)}; {wanted}")
    return _GraphRows(graph)


def entries_of(rows: Weights) -> Entries:
    """The entries of any weights."""
    if isinstance(rows, Rows):
        return rows.entries()
    found = [(taker, giver, share) for taker, row in rows.items() for giver, share in row.items()]
    takers, givers, shares = zip(*found, strict=True) if found else ((), (), ())
    return Entries(
        np.array(takers, dtype=np.int64), np.array(givers, dtype=np.int64), np.array(shares, dtype=np.float64)
    )


def listeners_of(rows: Weights, rank: int) -> Sequence[int]:
    """The other ranks that take of `rank`, in ascending order."""
    if isinstance(rows, Rows):
        return rows.listeners(rank)
    return [peer for peer, row in sorted(rows.items()) if rank in row and peer != rank]


def as_matrix(rows: Weights, world_size: int) -> NDArray[np.float64]:
    """The weights as `[N, N]`."""
    matrix, entries = np.zeros((world_size, world_size)), entries_of(rows)
    matrix[entries.takers, entries.givers] = entries.shares
    return matrix


def contraction(matrix: NDArray[np.float64]) -> float:
    """By how much at most one multiplication shrinks the distance from the mean: `||W - 11'/N||_2`."""
    size = len(matrix)
    return float(np.linalg.norm(matrix - np.full((size, size), 1 / size), 2))
