"""Graphs that take turns: each alone may leave ranks apart."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from relaxcomm import ConfigError, TopologyError, from_networkx, topology
from relaxcomm.config import load
from tests import references
from tests.engine.harness import assert_histories_agree, in_process, simulated_workers, train

PAIRS = from_networkx(nx.Graph([(0, 1), (2, 3)]))
OTHERS = from_networkx(nx.Graph([(1, 2), (3, 0)]))


def test_all_together_must_link_the_ranks():
    with pytest.raises(TopologyError, match="falls into 2 parts"):
        PAIRS.check(4)
    one = topology.in_turn(topologies=[PAIRS, OTHERS])
    one.check(4)
    assert one.spectral_gap(4) == pytest.approx(1)  # two exchanges of pairs make the mean of four
    np.testing.assert_allclose(one.matrix(4, 1) @ one.matrix(4, 0), np.full((4, 4), 0.25))
    with pytest.raises(TopologyError, match="falls into 2 parts"):
        topology.in_turn(topologies=[PAIRS, PAIRS]).check(4)
    with pytest.raises(TopologyError, match="but 5 workers"):
        topology.in_turn(topologies=[topology.ring(), PAIRS]).check(5)


def test_one_that_changes_goes_on_when_it_has_its_turn():
    changing = topology.one_peer_exponential()
    one = topology.in_turn(topologies=[topology.ring(), changing])
    assert one.period_steps(6) == 6
    for step in range(14):
        expected = changing.matrix(6, step // 2) if step % 2 else topology.ring().matrix(6)
        np.testing.assert_array_equal(one.matrix(6, step), expected)
    for rank in range(6):
        assert one.listeners(rank, 6, 3) == changing.listeners(rank, 6, 1)


def test_d_psgd_over_turns_equals_its_reference():
    one = topology.in_turn(topologies=[PAIRS, OTHERS, topology.star()])
    expected = references.d_psgd(simulated_workers(4), 31, [one.matrix(4, step) for step in range(3)])
    config = {"algorithm": "d_psgd", "topology": one}
    assert_histories_agree(in_process(train, 4, config, 31), expected)


def test_yaml():
    spec = {"in_turn": ["ring", {"random_regular": {"degree": 3}}]}
    expected = (topology.ring(), topology.random_regular(degree=3))
    assert load({"algorithm": "d_psgd", "topology": spec}).topology.topologies == expected
    with pytest.raises(ConfigError, match="in_turn"):
        load({"algorithm": "d_psgd", "topology": {"in_turn": ["ring"]}})
