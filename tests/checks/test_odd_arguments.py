"""The helpers for authors say what is wrong with what they are given."""

from __future__ import annotations

import networkx as nx
import pytest

from relaxcomm import TopologyError, UsageError, from_networkx, perform, rehearse, simulate, trajectory


@pytest.mark.parametrize("size", [0, -1, 2.5, "3"])
def test_a_number_of_ranks(size):
    with pytest.raises(UsageError, match=r"cannot be simulated; give a whole number of at least 1"):
        simulate(lambda group: group.rank(), size)


def test_no_operations_and_no_workers():
    with pytest.raises(UsageError, match="0 ranks"):
        perform([])
    with pytest.raises(UsageError, match="0 ranks"):
        rehearse("bsp", workers=0)
    with pytest.raises(UsageError, match="-1 epochs"):
        rehearse("bsp", epochs=-1)


@pytest.mark.parametrize("moves", [[], [1.0, 2.0], [[]], [[[[1.0]]]]], ids=str)
def test_moves_of_another_shape(moves):
    with pytest.raises(UsageError, match=r"moves of shape .* give \[steps, ranks\]"):
        trajectory("bsp", moves)


@pytest.mark.parametrize("graph", ["x", nx.Graph(), None], ids=str)
def test_what_is_no_graph(graph):
    with pytest.raises(TopologyError, match="is no graph with nodes"):
        from_networkx(graph)
