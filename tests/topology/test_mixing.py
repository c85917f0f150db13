"""Mixing weights of random graphs against what the papers say, computed here entry by entry."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from relaxcomm import TopologyError, from_networkx
from relaxcomm.topology import complete, mixing

SIZES = st.integers(2, 9)


@st.composite
def graphs(draw, directed=False):
    """Any graph without self-loops, its nodes in any order."""
    size = draw(SIZES)
    pairs = [(i, j) for i in range(size) for j in range(size) if (i != j if directed else i < j)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True))
    made = nx.DiGraph() if directed else nx.Graph()
    made.add_nodes_from(draw(st.permutations(range(size))))
    made.add_edges_from(chosen)
    return made


@settings(max_examples=80, deadline=None)
@given(graph=graphs())
def test_undirected_graphs_have_metropolis_hastings_weights(graph):
    size = len(graph)
    matrix = from_networkx(graph).matrix(size)
    adjacent = np.zeros((size, size), dtype=bool)
    for i, j in graph.edges:
        adjacent[i, j] = adjacent[j, i] = True
    degree = adjacent.sum(axis=0)
    for i in range(size):
        for j in range(size):
            if i != j:
                assert matrix[i, j] == pytest.approx(adjacent[i, j] / (1 + max(degree[i], degree[j])))
    np.testing.assert_allclose(matrix, matrix.T)
    np.testing.assert_allclose(matrix.sum(axis=0), 1)
    assert (np.diag(matrix) > 0).all()
    mixes = np.abs(np.linalg.matrix_power(matrix, 5000) - 1 / size).max() < 1e-6
    if mixes:
        from_networkx(graph).check(size)
    else:
        with pytest.raises(TopologyError, match="falls into"):
            from_networkx(graph).check(size)


@settings(max_examples=120, deadline=None)
@given(graph=graphs(directed=True))
def test_directed_graphs_are_taken_only_if_they_keep_the_mean_and_mix(graph):
    """Each rank sends equal parts to itself and along its links; independent of the order of checks."""
    size = len(graph)
    matrix = np.zeros((size, size))
    for i in range(size):
        targets = [i, *graph.successors(i)]
        matrix[targets, i] = 1 / len(targets)
    keeps = np.allclose(matrix.sum(axis=1), 1)
    mixes = np.abs(np.linalg.matrix_power(matrix, 5000) - 1 / size).max() < 1e-6
    one = from_networkx(graph)
    np.testing.assert_allclose(one.matrix(size), matrix)
    if keeps and mixes:
        one.check(size)
    else:
        with pytest.raises(TopologyError, match="falls into" if keeps else "directed and not balanced"):
            one.check(size)


@settings(max_examples=60, deadline=None)
@given(size=st.integers(3, 11), data=st.data())
def test_circulant_directed_graphs_are_taken(size, data):
    distances = data.draw(st.sets(st.integers(1, size - 1), min_size=1))
    assume(np.gcd.reduce([*distances, size]) == 1)
    graph = nx.DiGraph([(i, (i + d) % size) for i in range(size) for d in distances])
    one = from_networkx(graph)
    one.check(size)
    singular = np.linalg.svd(one.matrix(size), compute_uv=False)
    assert one.spectral_gap(size) == pytest.approx(1 - singular[1])
    assert one.spectral_gap(size) > 0


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_equal_rows_are_those_of_the_complete_graph_to_the_bit(size):
    rows, expected = complete().weights(size), mixing.weights(nx.complete_graph(size), "complete")
    assert {rank: list(row.items()) for rank, row in rows.items()} == {
        rank: list(row.items()) for rank, row in expected.items()
    }
    assert complete().links(size) == sum(len(row) - 1 for row in rows.values())
    with pytest.raises(KeyError):
        rows[size]


@settings(max_examples=60, deadline=None)
@given(graph=st.one_of(graphs(), graphs(directed=True)))
def test_entries_and_listeners_are_those_of_the_rows(graph):
    """Once as arrays, once from the rows as a plain mapping, as a plug-in's may be."""
    rows = mixing.weights(graph, "mine")
    plain = {rank: dict(row) for rank, row in rows.items()}
    quick, slow = (
        {(i, j): w for i, j, w in zip(e.takers.tolist(), e.givers.tolist(), e.shares.tolist(), strict=True)}
        for e in (mixing.entries_of(rows), mixing.entries_of(plain))
    )
    assert quick == pytest.approx(slow, abs=1e-12)
    for rank in graph:
        assert mixing.listeners_of(rows, rank) == mixing.listeners_of(plain, rank)


@pytest.mark.parametrize("links", [nx.Graph, nx.DiGraph])
def test_links_of_a_rank_with_itself_change_nothing(links):
    around = [(rank, (rank + 1) % 5) for rank in range(5)]
    once, again = links(around), links([*around, (2, 2), (4, 4)])
    assert mixing.weights(once, "once") == mixing.weights(again, "again")
