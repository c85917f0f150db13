"""Weights that a plug-in writes itself: those under which ranks would not come to their mean are refused."""

from __future__ import annotations

from contextlib import nullcontext
from typing import ClassVar

import networkx as nx
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from relaxcomm import PluginError, Rule, Topology, TopologyError, topology, trajectory
from relaxcomm.plugin import frozen
from relaxcomm.primitives import gossip, parameters, push_sum

MOVES = [[8.0, 0.0, 0.0], *[[0.0, 0.0, 0.0]] * 60]
SWAPS = ((0, 1, 0), (1, 0, 0), (0, 0, 1)), ((1, 0, 0), (0, 0, 1), (0, 1, 0))


@frozen
class written(Topology):
    """Matrices that take turns."""

    matrices: tuple[tuple[tuple[float, ...], ...], ...]

    changes: ClassVar[bool] = True

    def graph(self, world_size, step=0):
        return nx.complete_graph(world_size)

    def period_steps(self, world_size):
        return len(self.matrices)

    def weights(self, world_size, step=0):
        return {i: dict(enumerate(row)) for i, row in enumerate(self.matrices[step % len(self.matrices)])}


def rows(*matrices):
    return written(matrices=tuple(tuple(map(tuple, np.array(one, float).tolist())) for one in matrices))


EYE, CYCLE = np.eye(3), np.roll(np.eye(3), 1, axis=1)
EQUAL = np.full((3, 3), 1 / 3)
KEPT_BY_0 = np.array([[1, 0.5, 0.5], [0, 0.5, 0], [0, 0, 0.5]])
HANDED_OUT = np.array([[1 / 3, 0.3, 0.7], [1 / 3, 0.7, 0], [1 / 3, 0, 0.3]])


@pytest.mark.parametrize(
    ("one", "balanced", "says"),
    [
        (rows(EYE), True, "falls into 3 parts"),
        (rows(CYCLE), True, "never agree: from one period to the next their differences become 1 times"),
        (rows(CYCLE), False, "never agree"),
        (rows(*SWAPS), True, "never agree"),
        (rows(3 * EYE - 2 * (EQUAL * 3 - EYE) / 2), True, "differences become 4 times as large"),
        (rows(EQUAL * np.nan), True, "rank 0 takes of rank 0 with a weight of nan; give finite numbers"),
        (rows(EQUAL * np.nan), False, "give finite numbers"),
        (rows([[0.7, 0.15, 0.15]] * 3), True, "is taken with a total weight of 2.1 instead of 1"),
        (rows([[0.7, 0.15, 0.15]] * 3), False, "rank 0 is taken with a total weight of 2.1; for push_sum"),
        (rows(EQUAL.astype(np.float32)), True, None),
        (rows(HANDED_OUT.astype(np.float32)), False, None),
        (
            rows(1.00001 * EQUAL),
            True,
            "its weights are not balanced: rank 0 takes a total weight of 1.00001 inst",
        ),
        (rows(1.00001 * EQUAL), False, "rank 0 is taken with a total weight of 1.00001; for push_sum"),
        (rows(HANDED_OUT), True, r"rank 2 takes .* let weights\[i\]\[j\] sum to 1 .*push_sum"),
        (rows([[1.5, 0, 0], [-0.5, 0.5, 0.5], [0, 0.5, 0.5]]), False, "taken with a weight of -0.5"),
        (rows(np.full((3, 4), 0.25)), True, "takes of rank 3 with a weight of 0.25; give those of the ranks"),
        (rows(CYCLE, (CYCLE + EYE) / 2), True, None),  # a period in which all hear of each other
        (rows((CYCLE + CYCLE.T) / 2), True, None),  # nothing of themselves, and yet
        (rows(1.1 * EQUAL - 0.1 * EYE), True, None),  # less than nothing
        (rows([[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 0.5, 0.5]]), True, None),
        (rows([[0.9, 0.5, 0.5], [0.1, 0.5, 0], [0, 0, 0.5]]), False, "rank 0 never hears|never hears"),
        (rows(CYCLE, KEPT_BY_0 @ CYCLE.T), False, "rank 1 never hears"),  # though step by step all are linked
        (rows([[0.9, 0.5, 0], [0.05, 0.5, 0.5], [0.05, 0, 0.5]]), False, None),
    ],
)
def test_weights_must_bring_all_to_their_mean(one, balanced, says):
    exchange = gossip() if balanced else push_sum()
    with nullcontext() if says is None else pytest.raises(TopologyError, match=says):
        last = trajectory(Rule(payload=parameters(), exchange=exchange), MOVES, topology=one)[-1]
        np.testing.assert_allclose(last, 8 / 3, rtol=1e-4)


def test_a_row_without_its_own_rank_is_refused():
    @frozen
    class selfless(Topology):
        def graph(self, world_size, step=0):
            return nx.complete_graph(world_size)

        def weights(self, world_size, step=0):
            return {i: {j: 0.5 for j in range(3) if j != i} for i in range(3)}

    with pytest.raises(TopologyError, match=r"of rank 0 lack its own; give weights\[0\]\[0\]"):
        selfless().check(3)


@settings(max_examples=60, deadline=None)
@example(size=3, number=3, seed=3886)  # its second eigenvalue is 0.997
@given(size=st.integers(2, 6), number=st.integers(1, 3), seed=st.integers(0, 10_000))
def test_what_is_taken_agrees_and_what_is_refused_does_not(size, number, seed):
    """Mixtures of permutations, some of them without weight on the own rank or with negative weights."""
    draw = np.random.default_rng(seed)
    matrices = []
    for _ in range(number):
        shares = draw.dirichlet(np.ones(2)) if draw.random() < 0.7 else np.array([1.4, -0.4])
        matrices.append(sum(share * np.eye(size)[draw.permutation(size)] for share in shares))
    product = np.eye(size)
    for matrix in matrices:
        product = matrix @ product
    with np.errstate(all="ignore"):  # some go to infinity, and some to the mean by 0.3 % a step
        agrees = np.abs(np.linalg.matrix_power(product, 2**20) - 1 / size).max() < 1e-6
    with nullcontext() if agrees else pytest.raises(TopologyError):
        rows(*matrices).check(size)


def test_one_that_changes_says_when_its_graphs_come_again():
    @frozen
    class moving(Topology):
        changes: ClassVar[bool] = True

        def graph(self, world_size, step=0):
            return nx.path_graph(world_size)

    with pytest.raises(PluginError, match=r"moving declares changes = True.*define period_steps"):
        moving()


@pytest.mark.parametrize("one", [topology.random_pairs(), topology.hypercube(), topology.exponential()])
def test_graphs_need_no_product_of_matrices(one, monkeypatch):
    monkeypatch.setattr(Topology, "_product", None)
    one.check(16, balanced=True)
    one.check(16, balanced=False)


@frozen
class ring_and_more(Topology):
    """A ring, whose rank 0 takes of rank 2, too."""

    share: float

    def graph(self, world_size, step=0):
        return nx.cycle_graph(world_size)

    def weights(self, world_size, step=0):
        matrix = nx.to_numpy_array(self.graph(world_size)) / 4 + np.eye(world_size) / 2
        matrix[np.ix_((0, 2), (0, 2))] += self.share * np.array([[-1, 1], [1, -1]])
        return {i: dict(enumerate(row)) for i, row in enumerate(matrix.tolist())}


def test_weights_over_links_that_the_graph_lacks_are_refused():
    with pytest.raises(TopologyError, match=r"rank 0 takes of rank 2 with a weight of 0.1, but the graph"):
        ring_and_more(share=0.1).check(5)
    ring_and_more(share=0.0).check(5)


@frozen
class static(written):
    @staticmethod
    def period_steps(world_size):
        return 2 if world_size == 3 else 0


def test_a_period_may_be_static():
    one = static(matrices=SWAPS)
    assert one.period_steps(3) == 2
    with pytest.raises(PluginError, match=r"period_steps of static.* with 4 workers returned 0"):
        one.period_steps(4)
