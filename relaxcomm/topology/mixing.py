"""Mixing weights: how much of each neighbour's parameters a rank takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from relaxcomm.errors import TopologyError

_TOLERANCE = 1e-9

Weights = Mapping[int, Mapping[int, float]]


def weights(graph: Any) -> Weights:
    """Metropolis-Hastings weights of an undirected graph, uniform ones of a directed graph.

    Undirected: `W_ij = 1 / (1 + max(deg i, deg j))` over an edge, `W_ii = 1 - sum_j W_ij`: symmetric and
    doubly stochastic whatever the graph. Directed: each rank sends equal parts to itself and along
    its links, `W_ji = 1 / (1 + outdegree i)`, which is doubly stochastic only if all ranks have as many
    links in as out, and all the same number.

    Args:
        graph: over the ranks.

    Returns: `weights[i][j]`, with i itself.

    Reference: Xiao and Boyd, "Fast linear iterations for distributed averaging", 2004.
    """
    nodes = sorted(graph.nodes)
    if nx.is_directed(graph):
        return {
            i: {j: 1 / (1 + graph.out_degree(j)) for j in sorted({*graph.predecessors(i), i})} for i in nodes
        }
    rows: dict[int, dict[int, float]] = {}
    for i in nodes:
        row = {j: 1 / (1 + max(graph.degree(i), graph.degree(j))) for j in sorted(graph.neighbors(i))}
        rows[i] = {i: 1 - sum(row.values()), **row}
    return rows


def as_matrix(rows: Weights, world_size: int) -> NDArray[np.float64]:
    """The weights as `[N, N]`."""
    matrix = np.zeros((world_size, world_size))
    for i, row in rows.items():
        for j, weight in row.items():
            matrix[i, j] = weight
    return matrix


def contraction(matrix: NDArray[np.float64]) -> float:
    """By how much at most one multiplication shrinks the distance from the mean: `||W - 11'/N||_2`."""
    size = len(matrix)
    return float(np.linalg.norm(matrix - np.full((size, size), 1 / size), 2))


def check(rows: Weights, world_size: int, name: str) -> None:
    """Refuse weights under which the mean of all ranks would move.

    Raises: TopologyError, naming the rank.
    """
    matrix = as_matrix(rows, world_size)
    for what, sums in (("takes", matrix.sum(axis=1)), ("is taken with", matrix.sum(axis=0))):
        worst = int(np.argmax(np.abs(sums - 1)))
        if abs(sums[worst] - 1) > _TOLERANCE:
            raise TopologyError(
                f"{name} is directed and not balanced: rank {worst} {what} a total weight of "
                f"{sums[worst]:.3g} instead of 1, so the mean of the ranks would move; use an undirected "
                "graph, give all ranks the same number of links in and out, or use the exchange push_sum(), "
                "as the algorithm sgp does"
            )
