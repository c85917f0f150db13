"""Pictures of topologies: every rank is seen, no link hides behind a rank."""

from __future__ import annotations

import itertools
import time

import networkx as nx
import numpy as np
import pytest

from relaxcomm import RelaxcommError, TopologyError, from_networkx, topology
from relaxcomm.cli.topology_picture import _passes_over, draw_topology, spread

pyplot = pytest.importorskip("matplotlib.pyplot")

SIZES = {
    topology.complete(): (1, 2, 9),
    topology.ring(): (1, 2, 7),
    topology.star(): (1, 2, 3, 8),
    topology.grid(): (1, 2, 5, 12),
    topology.torus(): (1, 2, 4, 5, 12),
    topology.hypercube(): (1, 2, 8, 16, 32),
    topology.exponential(): (1, 2, 9),
    topology.one_peer_exponential(): (1, 2, 6),
    topology.random_regular(degree=3): (4, 20),
    topology.erdos_renyi(probability=0.7): (1, 9),
    topology.hierarchical(sizes=(2, 1)): (3,),
    topology.hierarchical(sizes=(3, 5)): (8,),
    from_networkx(nx.path_graph(4)): (4,),
    topology.in_turn(topologies=[topology.grid(), topology.ring()]): (6,),
}
CASES = [(one, size) for one, sizes in SIZES.items() for size in sizes]


@pytest.mark.parametrize(("one", "size"), CASES, ids=repr)
def test_no_two_ranks_stand_at_one_place(one, size):
    places = spread(one, size, one.period_steps(size))
    assert set(places) == set(range(size))
    for a, b in itertools.combinations(places.values(), 2):
        assert np.hypot(a[0] - b[0], a[1] - b[1]) > 0.05


@pytest.mark.parametrize(("one", "size"), CASES, ids=repr)
def test_every_panel_shows_every_rank(one, size, tmp_path):
    draw_topology(one, size, tmp_path / "graph.png")
    picture = pyplot.imread(tmp_path / "graph.png")[..., :3]
    assert discs(picture) == size * one.period_steps(size)
    edge = np.concatenate(
        [picture[:2].ravel(), picture[-2:].ravel(), picture[:, :2].ravel(), picture[:, -2:].ravel()]
    )
    assert (edge == 1).all(), "something is cut off"


def test_of_a_long_period_the_first_exchanges_are_drawn(tmp_path):
    drawn = draw_topology(topology.random_pairs(rounds=500), 4, tmp_path / "graph.png")
    assert discs(pyplot.imread(drawn)[..., :3]) == 4 * 8


def test_very_many_links_are_drawn_in_a_moment(tmp_path):
    """2,016 straight ones; as patches, one a link, they took ten seconds."""
    begun = time.process_time()
    draw_topology(topology.complete(), 64, tmp_path / "graph.png")
    assert time.process_time() - begun < 3


def discs(picture):
    """How many discs there are: coloured areas, with the white numbers on them filled by closing."""
    from scipy import ndimage

    coloured = picture.max(axis=-1) - picture.min(axis=-1) > 0.2  # links and text are grey
    closed = ndimage.binary_closing(coloured, iterations=2)
    labels, count = ndimage.label(closed)
    areas = ndimage.sum_labels(closed, labels, range(1, count + 1))
    return int((np.asarray(areas) > 60).sum())


def test_a_link_that_would_pass_over_a_rank_is_bent():
    places = {0: (0.0, 0.0), 1: (1.0, 0.0), 2: (2.0, 0.0), 3: (1.0, 1.0)}
    assert _passes_over(0, 2, places)
    assert not _passes_over(0, 1, places)
    assert not _passes_over(0, 3, places)
    assert not _passes_over(2, 3, places)


def test_what_cannot_be_drawn_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RelaxcommError, match=r"cannot write .*file/graph\.png"):
        draw_topology(topology.ring(), 3, tmp_path / "file" / "graph.png")
    with pytest.raises(TopologyError, match="power of two"):
        draw_topology(topology.hypercube(), 3, tmp_path / "graph.png")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
