"""What ranks compare at attach, what is kept between steps, and what files and graphs must say."""

from __future__ import annotations

from typing import ClassVar

import networkx as nx
import numpy as np
import pytest
import torch

import relaxcomm.config
from relaxcomm import TopologyError, from_networkx, primitives, topology
from relaxcomm.plugin import frozen
from tests.engine.harness import in_process, train
from tests.models import CASES, make_optimizer


def test_a_file_that_has_changed_is_read_afresh_by_a_new_topology(tmp_path):
    path = tmp_path / "sites.edgelist"
    nx.write_edgelist(nx.path_graph(3), path)
    before = topology.file(path=str(path))
    assert sorted(before.weights(3)[0]) == [0, 1]
    nx.write_edgelist(nx.cycle_graph(3), path)
    after = topology.file(path=str(path))
    assert sorted(after.weights(3)[0]) == [0, 1, 2]
    assert before.describe(3) != after.describe(3)
    assert sorted(before.graph(3).edges) == [(0, 1), (1, 2)], "a graph must not change under a run"


def gossip_over_own_file(world, folder):
    """Every rank has a file of its own under the same name; only rank 1's is another graph."""
    graph = nx.path_graph(3) if world.rank == 1 else nx.cycle_graph(3)
    nx.write_edgelist(graph, folder / "sites.edgelist")
    exchange = primitives.gossip(topology=topology.file(path=str(folder / "sites.edgelist")))
    rule = relaxcomm.Rule(payload=primitives.parameters(), exchange=exchange)
    return relaxcomm.Algorithm((rule,))


def own_file(world, folder):
    train(world, {"algorithm": gossip_over_own_file(world, folder)}, 1)


def own_file_later(world, folder):
    phase = {"after_steps": 5, "algorithm": gossip_over_own_file(world, folder)}
    train(world, {"algorithm": "bsp", "phases": [phase]}, 1)


def switch_to_own_file(world, folder):
    model = CASES["toy"].model()
    with world.attach(model, make_optimizer("plain", model), {"algorithm": "bsp"}) as engine:
        engine.switch(gossip_over_own_file(world, folder))


def test_ranks_whose_exchanges_have_different_graphs_are_refused(tmp_path):
    with pytest.raises(relaxcomm.ConfigError, match="ranks disagree on topology of rule 0"):
        in_process(own_file, 3, tmp_path)


def test_so_are_those_whose_phases_have_different_graphs(tmp_path):
    with pytest.raises(relaxcomm.ConfigError, match="ranks disagree on topology of rule 0 of phase 0"):
        in_process(own_file_later, 3, tmp_path)


def test_so_are_those_that_switch_to_different_graphs(tmp_path):
    with pytest.raises(relaxcomm.ConfigError, match="ranks disagree on topology of rule 0"):
        in_process(switch_to_own_file, 3, tmp_path)


def test_the_text_that_ranks_compare_is_short():
    for one in (topology.complete(), topology.ring(), from_networkx(nx.cycle_graph(300))):
        assert len(one.describe(300)) < 100
    relabelled = from_networkx(nx.relabel_nodes(nx.path_graph(3), {0: 1, 1: 0}))
    assert relabelled.describe(3) != from_networkx(nx.path_graph(3)).describe(3)


def test_groups_are_compared_too():
    """A plug-in may make the same graph and other groups of something that its arguments do not say."""

    @frozen
    class by_host(topology.ring):
        cut: ClassVar[int] = 1

        def groups(self, world_size):
            return [list(range(self.cut)), list(range(self.cut, world_size))]

    one, other = by_host(), by_host()
    object.__setattr__(other, "cut", 2)
    assert one.describe(3) != other.describe(3)


def test_listeners_are_the_columns_of_the_matrix():
    for one in (topology.star(), topology.exponential(), topology.one_peer_exponential()):
        for step in range(2 * one.period_steps(7)):
            matrix = one.matrix(7, step)
            for rank in range(7):
                expected = [peer for peer in np.flatnonzero(matrix[:, rank]) if peer != rank]
                assert one.listeners(rank, 7, step) == expected


@pytest.mark.parametrize("make", [np.int64, np.float32, int, float])
def test_numbers_on_links_are_kept_whoever_made_them(make):
    graph = nx.Graph()
    graph.add_edge(0, 1, bandwidth=make(1000), latency=make(0), name="uplink", up=True)
    assert from_networkx(graph).graph(2).edges[0, 1] == {"bandwidth": 1000.0, "latency": 0.0}


@pytest.mark.parametrize("value", ["1e9", -1.0, float("nan"), float("inf"), True, None, torch.ones(2)])
@pytest.mark.parametrize("name", ["bandwidth", "latency"])
def test_a_measure_that_is_no_number_is_refused(name, value):
    graph = nx.Graph()
    graph.add_edge(0, 1, **{name: value})
    with pytest.raises(TopologyError, match=f"the {name} of the link 0 to 1 is .*give a number of"):
        from_networkx(graph)


def test_two_nodes_of_one_rank_are_refused():
    with pytest.raises(TopologyError, match="rank 0 is the name of two nodes, one of them 'n0'; name each"):
        from_networkx(nx.Graph([("n0", "1"), ("0", "1")]))
    with pytest.raises(TopologyError, match="linked with itself"):
        from_networkx(nx.Graph([(0, 0), (0, 1)]))


def test_python_may_write_sizes_as_a_list():
    assert topology.hierarchical(sizes=[2, 1]) == topology.hierarchical(sizes=(2, 1))
    for wrong in ([], [2, 0], [2.5], "21", 0, 2.0):
        with pytest.raises(relaxcomm.ConfigError, match="sizes"):
            topology.hierarchical(sizes=wrong)


def test_a_configuration_knows_all_its_topologies_and_whether_they_fit():
    own = {"gossip": {"topology": "hypercube"}}
    rules = [{"payload": "parameters", "exchange": one} for one in ("gossip", own)]
    settings = relaxcomm.config.load({"algorithm": {"rules": rules}, "topology": "ring"})
    assert settings.topologies == {"topology": topology.ring(), "topology of rule 1": topology.hypercube()}
    settings.check_world_size(4)
    with pytest.raises(TopologyError, match="power of two, got 6"):
        settings.check_world_size(6)
    assert settings.model_dump(exclude={"algorithm"})["topology"] == "ring()"


def test_the_topologies_of_phases_belong_to_the_configuration():
    own = {"gossip": {"topology": "hypercube"}}
    rules = [{"payload": "parameters", "exchange": one} for one in ("gossip", own)]
    later = [{"after_steps": 3, "algorithm": "d_psgd"}, {"after_steps": 5, "algorithm": {"rules": rules}}]
    settings = relaxcomm.config.load({"algorithm": "d_psgd", "phases": later, "topology": "ring"})
    expected = {"topology": topology.ring(), "topology of rule 1 of phase 1": topology.hypercube()}
    assert settings.topologies == expected
    settings.check_world_size(4)
    with pytest.raises(TopologyError, match="power of two, got 6"):
        settings.check_world_size(6)


def test_one_size_for_all_groups_fits_any_number_of_workers():
    one = topology.hierarchical(sizes=3)
    assert one.groups(7) == [[0, 1, 2], [3, 4, 5], [6]]
    assert one.groups(2) == [[0, 1]]
    for size in (1, 2, 3, 7):
        one.check(size)
    settings = {"algorithm": "hierarchical_local_sgd", "topology": {"hierarchical": {"sizes": 3}}}
    assert relaxcomm.config.load(settings).topology == one


def test_gradients_that_differ_between_ranks_for_good_are_warned_of():
    gradients = {"payload": "gradients", "exchange": "gossip"}
    with pytest.warns(relaxcomm.CompositionWarning, match="replicas part for good"):
        relaxcomm.config.load({"algorithm": {"rules": [gradients]}, "topology": "ring"})
    average = {"payload": "parameters", "exchange": "all_reduce", "trigger": {"every": {"steps": 4}}}
    relaxcomm.config.load({"algorithm": {"rules": [gradients, average]}, "topology": "ring"})  # warns not
