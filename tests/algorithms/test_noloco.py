"""NoLoCo and elastic averaging against their references, and in what they differ from others."""

from __future__ import annotations

import random

import numpy as np
import pytest

from relaxcomm import CompositionError, Rule, trajectory
from relaxcomm.primitives import (
    all_reduce,
    elastic_difference,
    every,
    gossip,
    random_pairs,
    server,
    sgd,
    slow_weights,
)
from tests import references
from tests.algorithms.test_sparse_algorithms import bucket_places
from tests.engine.harness import (
    assert_histories_agree,
    in_process,
    simulated_workers,
    train,
)

STEPS = 24
GIVEN = {"lr": 0.7, "momentum": 0.5, "gamma": 0.6}
NOLOCO = {"algorithm": {"name": "noloco", "steps": 3, "seed": 3, **GIVEN}, "bucket_bytes": 1200}
EASGD = {"algorithm": {"name": "easgd", "steps": 4, "beta": 0.6}, "bucket_bytes": 1200}


def pairs(seed, size):
    """The groups of each round: pairs, and who is left over."""

    def groups(turn):
        ranks = list(range(size))
        random.Random(f"{seed}/{turn}").shuffle(ranks)
        return [ranks[start : start + 2] for start in range(0, size, 2)]

    return groups


@pytest.mark.parametrize("size", [3, 4, 5])
@pytest.mark.parametrize("optimizer", ["plain", "adamw"])
def test_noloco_equals_its_reference(size, optimizer):
    assert len(in_process(bucket_places, size, {**NOLOCO, "algorithm": "bsp"})[0]) == 2
    workers = simulated_workers(size, optimizer)
    expected = references.noloco(workers, STEPS, 3, pairs(3, size), *GIVEN.values())
    assert_histories_agree(in_process(train, size, NOLOCO, STEPS, optimizer), expected)


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("period", [1, 4])
def test_easgd_equals_its_reference(size, period):
    config = {"algorithm": {"name": "easgd", "steps": period, "beta": 0.6}, "bucket_bytes": 1200}
    expected = references.easgd(simulated_workers(size), STEPS, period, 0.6)
    assert_histories_agree(in_process(train, size, config, STEPS), expected)


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8])
def test_pairs_are_pairs_and_meet_all(size):
    topology, met = random_pairs(seed=1), set()
    for turn in range(topology.rounds):
        for rank in range(size):
            peers = topology.listeners(rank, size, turn)
            assert len(peers) <= 1
            assert all(topology.listeners(peer, size, turn) == [rank] for peer in peers)
            met |= {(rank, peer) for peer in peers}
        assert sum(bool(topology.listeners(rank, size, turn)) for rank in range(size)) == size - size % 2
    assert len(met) == size * (size - 1)
    assert random_pairs(seed=2).weights(size, 1) != topology.weights(size, 1) or size == 2


def test_the_pull_keeps_replicas_of_pairs_together():
    """Without it slow weights of four workers part as they learn; with it they stay near."""

    def spread(gamma):
        rule = NOLOCO["algorithm"] | {"gamma": gamma, "steps": 1, "lr": 1.0}
        last = in_process(train, 4, {"algorithm": rule}, 60, "plain")
        return np.ptp([history[-2] for history in last], axis=0).max()

    assert spread(0.6) < 0.5 * spread(1e-3)


def test_a_base_of_each_own_is_moved_by_any_outer_but_by_no_server():
    Rule(payload=slow_weights(lr=0.7, gamma=0.6), exchange=gossip(), outer=sgd(lr=0.5))
    with pytest.raises(CompositionError, match="adds up what workers have moved"):
        Rule(payload=slow_weights(lr=0.7, gamma=0.6), exchange=server(staleness=1))
    with pytest.raises(CompositionError, match="must stay the same on all ranks"):
        Rule(payload=elastic_difference(beta=0.5), exchange=gossip())


def test_a_late_spring_pulls_by_what_was_sent():
    """The center moves by what the springs pull workers back, whatever these have done since then."""
    springs, every_other = elastic_difference(beta=0.5), every(steps=2)
    rule = Rule(payload=springs, exchange=all_reduce(), outer=sgd(lr=0.5), trigger=every_other, delay=2)
    moved = trajectory(rule, [[1.0, 3.0]] * 5)
    sent, center = [2.0, 6.0], 0.0  # after two steps
    assert moved[2].tolist() == [3.0, 9.0]
    assert moved[3].tolist() == [4.0 - 0.25 * (sent[0] - center), 12.0 - 0.25 * (sent[1] - center)]


def test_a_pull_on_a_ring_is_a_composition():
    """The roles serve any graph and any outer: slow weights over a ring, moved by Nesterov momentum."""
    rule = {
        "payload": {"slow_weights": {"lr": 0.7, "gamma": 0.6}},
        "exchange": {"gossip": {"topology": "ring"}},
        "outer": {"nesterov": {"lr": 1.0, "momentum": 0.3}},
        "trigger": {"every": {"steps": 2}},
    }
    found = in_process(train, 4, {"algorithm": {"rules": [rule]}}, STEPS)
    assert np.isfinite(found[0][-1]).all()
    assert np.ptp([history[-2] for history in found], axis=0).max() > 0
