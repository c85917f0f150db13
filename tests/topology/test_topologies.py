"""Graphs by name, from files and from networkx: their links, mixing weights and checks."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from relaxcomm import ConfigError, Topology, TopologyError, from_networkx, topology
from relaxcomm.config import load, registry

NAMED = [
    topology.complete(),
    topology.ring(),
    topology.star(),
    topology.grid(),
    topology.torus(),
    topology.exponential(),
    topology.one_peer_exponential(),
]


def neighbors(graph, rank):
    return sorted(set(graph.successors(rank) if graph.is_directed() else graph.neighbors(rank)))


@pytest.mark.parametrize("one", NAMED, ids=repr)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12])
def test_named_graphs_work_for_every_number_of_ranks(one, size):
    one.check(size)
    for step in range(one.period_steps(size)):
        matrix = one.matrix(size, step)
        np.testing.assert_allclose(matrix.sum(axis=0), 1)
        np.testing.assert_allclose(matrix.sum(axis=1), 1)
        assert (matrix >= 0).all()
        assert (np.diag(matrix) >= 0).all()
        graph = one.graph(size, step)
        linked = {(i, j) for i in range(size) for j in range(size) if i != j and matrix[j, i] > 0}
        assert linked == {(i, j) for i in range(size) for j in neighbors(graph, i)}


@pytest.mark.parametrize(
    ("one", "size", "rank", "expected"),
    [
        (topology.ring(), 5, 0, [1, 4]),
        (topology.ring(), 2, 0, [1]),
        (topology.star(), 5, 3, [0]),
        (topology.star(), 5, 0, [1, 2, 3, 4]),
        (topology.grid(), 6, 4, [1, 3, 5]),
        (topology.torus(), 12, 0, [1, 3, 4, 8]),
        (topology.torus(), 5, 0, [1, 4]),
        (topology.hypercube(), 8, 5, [1, 4, 7]),
        (topology.exponential(), 6, 1, [2, 3, 5]),
        (topology.hierarchical(sizes=(2, 3)), 5, 2, [0, 3, 4]),
    ],
)
def test_links(one, size, rank, expected):
    assert neighbors(one.graph(size), rank) == expected


def test_metropolis_hastings_weights():
    """A path of 3 with one leaf more: 1 / (1 + the larger degree) over each edge."""
    graph = nx.Graph([(0, 1), (1, 2), (1, 3)])
    matrix = from_networkx(graph).matrix(4)
    quarter = 1 / 4
    expected = [
        [1 - quarter, quarter, 0, 0],
        [quarter, quarter, quarter, quarter],
        [0, quarter, 1 - quarter, 0],
        [0, quarter, 0, 1 - quarter],
    ]
    np.testing.assert_allclose(matrix, expected)


@settings(max_examples=60, deadline=None)
@given(size=st.integers(2, 12), probability=st.floats(0.2, 1.0), seed=st.integers(0, 1000))
def test_weights_of_any_connected_graph(size, probability, seed):
    one = topology.erdos_renyi(probability=probability, seed=seed)
    graph = one.graph(size)
    if not nx.is_connected(graph):
        with pytest.raises(TopologyError, match="falls into"):
            one.check(size)
        return
    one.check(size)
    matrix = one.matrix(size)
    np.testing.assert_allclose(matrix, matrix.T)
    np.testing.assert_allclose(matrix.sum(axis=1), 1)
    second = sorted(np.abs(np.linalg.eigvalsh(matrix)))[-2]
    assert one.spectral_gap(size) == pytest.approx(1 - second, abs=1e-9)
    assert one.spectral_gap(size) > 0


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_one_peer_exponential_makes_the_exact_mean_in_log2_steps(size):
    one = topology.one_peer_exponential()
    product = np.eye(size)
    for step in range(one.period_steps(size)):
        product = one.matrix(size, step) @ product
    np.testing.assert_allclose(product, np.full((size, size), 1 / size))
    assert one.spectral_gap(size) == pytest.approx(1)


def test_hypercube_and_regular_graphs():
    assert topology.hypercube().spectral_gap(4) == pytest.approx(1 - 1 / 3)
    for size in (1, 2, 8):
        topology.hypercube().check(size)
    one = topology.random_regular(degree=3, seed=2)
    assert {len(row) for row in one.weights(10).values()} == {4}
    assert one.describe(10) == topology.random_regular(degree=3, seed=2).describe(10)
    assert one.describe(10) != topology.random_regular(degree=3, seed=3).describe(10)


@pytest.mark.parametrize(
    ("one", "size", "match"),
    [
        (topology.hypercube(), 6, "power of two, got 6 workers; use 4 or 8"),
        (topology.random_regular(degree=3), 3, "below their number"),
        (topology.random_regular(degree=3), 5, "product of the two even"),
        (topology.hierarchical(sizes=(2, 2)), 5, r"hold 4 ranks, but there are 5 workers"),
        (from_networkx(nx.Graph([(0, 1), (2, 3)])), 4, r"falls into 2 parts.*\[\[0, 1\], \[2, 3\]\]"),
        (from_networkx(nx.path_graph(3)), 4, r"has the nodes 0, 1, 2, but 4 workers"),
        (from_networkx(nx.Graph([(1, 2), (2, 3)])), 3, r"has the nodes 1, 2, 3, but 3 workers"),
        (from_networkx(nx.DiGraph([(0, 1), (1, 2)])), 3, "directed and not balanced"),
        (from_networkx(nx.DiGraph([(0, 1), (1, 0), (1, 2), (2, 1)])), 3, "directed and not balanced"),
        (topology.file(path="nowhere.graphml"), 3, "cannot read the topology"),
        (topology.file(path="nowhere.txt"), 3, "ends in"),
    ],
)
def test_what_cannot_work_is_refused(one, size, match):
    with pytest.raises(TopologyError, match=match):
        one.check(size)


def test_a_balanced_directed_graph_is_taken():
    from_networkx(nx.DiGraph([(0, 1), (1, 2), (2, 0)])).check(3)


def test_files_keep_bandwidth_and_latency(tmp_path):
    graph = nx.Graph()
    graph.add_edge(0, 1, bandwidth=1e9, latency=0.001)
    graph.add_edge(1, 2, bandwidth=1e7, latency=0.05, note="the slow one")
    nx.write_graphml(graph, tmp_path / "sites.graphml")
    nx.write_edgelist(graph, tmp_path / "sites.edgelist")
    for name in ("sites.graphml", "sites.edgelist"):
        one = topology.file(path=str(tmp_path / name))
        one.check(3)
        read = one.graph(3)
        assert {tuple(sorted(edge)) for edge in read.edges} == {(0, 1), (1, 2)}
        assert read.edges[1, 2] == {"bandwidth": 1e7, "latency": 0.05}
    (tmp_path / "broken.graphml").write_text("no graph at all")
    with pytest.raises(TopologyError, match="is not a graph"):
        topology.file(path=str(tmp_path / "broken.graphml")).check(3)
    nx.write_edgelist(nx.Graph([("a", "b")]), tmp_path / "names.edgelist")
    with pytest.raises(TopologyError, match="'a' is not a rank"):
        topology.file(path=str(tmp_path / "names.edgelist")).check(2)


def test_yaml_and_its_errors():
    gossiping = {"algorithm": "d_psgd"}
    assert load({**gossiping, "topology": "ring"}).topology == topology.ring()
    regular = {"random_regular": {"degree": 3, "seed": 1}}
    assert load({**gossiping, "topology": regular}).topology == topology.random_regular(degree=3, seed=1)
    sizes = {"hierarchical": {"sizes": [2, 3]}}
    assert load({"algorithm": "hierarchical_local_sgd", "topology": sizes}).topology.groups(5)[1] == [2, 3, 4]
    assert load({**gossiping, "topology": nx.path_graph(3)}).topology.nodes == (0, 1, 2)
    with pytest.raises(ConfigError, match="did you mean 'ring'"):
        load({**gossiping, "topology": "rings"})
    with pytest.raises(ConfigError, match="degree"):
        load({**gossiping, "topology": {"random_regular": {"degree": 0}}})


def test_all_named_ones_are_discovered():
    defined = {
        name
        for name, value in vars(topology).items()
        if isinstance(value, type) and issubclass(value, Topology)
    }
    assert set(registry.primitives()["topology"]) == defined - {
        "Topology",
        "custom",
    }  # the base, and what from_networkx makes
