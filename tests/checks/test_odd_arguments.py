"""The helpers for authors say what is wrong with what they are given."""

from __future__ import annotations

import networkx as nx
import pytest
import torch

from relaxcomm import (
    TopologyError,
    UsageError,
    from_networkx,
    perform,
    rehearse,
    round_trip,
    simulate,
    trajectory,
)
from relaxcomm.primitives import top_k


@pytest.mark.parametrize("size", [0, -1, 2.5, "3", True])
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


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_times_that_no_rank_can_compute_for(seconds):
    with pytest.raises(UsageError, match=r"cannot compute for .* give seconds of at least 0"):
        simulate(lambda group: group.sleep(seconds), 2)


def test_tensors_that_one_worker_does_not_send_in_turn():
    kept = top_k(density=0.5)
    with pytest.raises(UsageError, match=r"of one shape and type, got torch.float32 \[2\] and .* \[3\]"):
        round_trip(kept, [torch.ones(3), torch.ones(2)])
    assert round_trip(kept, []) == []
    (arrived,) = round_trip(kept, [torch.tensor([1.0, 3.0], requires_grad=True)])
    assert arrived.tolist() == [0.0, 3.0]


def test_a_trajectory_beside_another_default_type():
    torch.set_default_dtype(torch.float64)
    try:
        assert trajectory("bsp", [[1.0, 3.0]]).tolist() == [[2.0, 2.0]]
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("graph", ["x", nx.Graph(), None], ids=str)
def test_what_is_no_graph(graph):
    with pytest.raises(TopologyError, match="is no graph with nodes"):
        from_networkx(graph)
