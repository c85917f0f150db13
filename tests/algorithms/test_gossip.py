"""Gossip and hierarchical averaging against references; what gossip promises; what is refused."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch

import relaxcomm.config
from relaxcomm import from_networkx, primitives, topology
from relaxcomm.plugin import exchange_cost, one_tensor
from tests import references
from tests.engine.harness import assert_histories_agree, in_process, on_gloo, simulated_workers, train, values
from tests.models import CASES, take_step, trainable

STEPS = 32
UNDIRECTED = {
    "ring": topology.ring(),
    "star": topology.star(),
    "grid": topology.grid(),
    "path": from_networkx(nx.path_graph(5)),
    "exponential": topology.exponential(),
}


@pytest.mark.every_other("name", "optimizer")
@pytest.mark.parametrize("optimizer", ["plain", "momentum"])
@pytest.mark.parametrize("name", UNDIRECTED)
def test_d_psgd_equals_its_reference(name, optimizer):
    one = UNDIRECTED[name]
    expected = references.d_psgd(simulated_workers(5, optimizer), STEPS, [one.matrix(5)])
    config = {"algorithm": "d_psgd", "topology": one}
    assert_histories_agree(in_process(train, 5, config, STEPS, optimizer), expected)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_one_peer_exponential_equals_its_reference(size):
    one = topology.one_peer_exponential()
    matrices = [one.matrix(size, step) for step in range(one.period_steps(size))]
    expected = references.d_psgd(simulated_workers(size), STEPS, matrices)
    config = {"algorithm": "one_peer_exponential"}
    assert_histories_agree(in_process(train, size, config, STEPS), expected)


@pytest.mark.parametrize("sizes", [(2, 1), (1, 1, 1), (3,)])
def test_hierarchical_local_sgd_equals_its_reference(sizes):
    groups = topology.hierarchical(sizes=sizes).groups(3)
    expected = references.hierarchical_local_sgd(simulated_workers(3), STEPS, 5, groups)
    config = {
        "algorithm": {"name": "hierarchical_local_sgd", "steps": 5},
        "topology": {"hierarchical": {"sizes": list(sizes)}},
    }
    assert_histories_agree(in_process(train, 3, config, STEPS), expected)


def mixed(world, rounds, one, start):
    """Only mixing: learning rate 0. The rank's value after each round."""
    model = torch.nn.Linear(3, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    rule = {"payload": "parameters", "exchange": "gossip"}
    seen = []
    config = {"algorithm": {"rules": [rule]}, "topology": one, "bucket_bytes": 32}
    with world.attach(model, optimizer, config) as engine:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(start[world.rank])
        for _ in range(rounds):
            take_step(model(torch.ones(1, 3).double()).sum(), optimizer)
            seen.append(values(model)[0])
        engine.close(average=False)
    return seen


@pytest.mark.parametrize(
    ("one", "size"),
    [
        (topology.ring(), 7),
        (topology.star(), 6),
        (topology.grid(), 6),
        (topology.hypercube(), 8),
        (topology.exponential(), 5),
        (topology.one_peer_exponential(), 6),
    ],
    ids=repr,
)
def test_gossip_keeps_the_mean_and_contracts_at_the_gaps_rate(one, size):
    start = np.random.default_rng(3).normal(size=size)
    rounds = 6 * one.period_steps(size)
    history = np.array(in_process(mixed, size, rounds, one, start)).T
    np.testing.assert_allclose(history.mean(axis=1), start.mean(), rtol=1e-12)
    distance = np.linalg.norm(history - start.mean(), axis=1)
    bound = np.linalg.norm(start - start.mean()) * (1 - one.spectral_gap(size)) ** np.arange(1, rounds + 1)
    period = one.period_steps(size)
    assert (distance[period - 1 :: period] <= bound[period - 1 :: period] * (1 + 1e-9)).all()


def test_the_rate_is_met_from_the_slowest_start():
    one, size = topology.ring(), 7
    _, vectors = np.linalg.eigh(one.matrix(size))
    slowest = vectors[:, -2]
    history = np.array(in_process(mixed, size, 9, one, slowest)).T
    ratio = np.linalg.norm(history[-1]) / np.linalg.norm(slowest)
    assert ratio == pytest.approx((1 - one.spectral_gap(size)) ** 9)


def exact_mean(world, sizes, numel):
    model = torch.nn.Linear(numel, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    rule = {"payload": "parameters", "exchange": "hierarchical_all_reduce"}
    config = {"algorithm": {"rules": [rule]}, "topology": {"hierarchical": {"sizes": sizes}}}
    with world.attach(model, optimizer, config) as engine:
        generator = torch.Generator().manual_seed(world.rank)
        with torch.no_grad():
            model.weight.copy_(torch.randn(1, numel, generator=generator))
        mine = model.weight.detach().clone()
        model(torch.ones(1, numel)).sum().backward()
        before = engine.statistics["bytes_sent"]
        optimizer.step()
        sent = engine.statistics["bytes_sent"] - before
        engine.close(average=False)
    return mine, model.weight.detach(), sent


@pytest.mark.parametrize("sizes", [[2, 3], [1, 4], [3, 1, 2], [6], [1, 1]])
@pytest.mark.parametrize("numel", [1, 2, 7, 60])
def test_hierarchical_all_reduce_is_the_mean_and_the_same_everywhere(sizes, numel):
    found = in_process(exact_mean, sum(sizes), sizes, numel)
    mean = torch.stack([mine for mine, _, _ in found]).mean(0)
    for _, result, _ in found:
        torch.testing.assert_close(result, mean)
        assert torch.equal(result, found[0][1])
    if numel == 60:
        exchange = primitives.hierarchical_all_reduce()
        cost = exchange_cost(
            exchange,
            primitives.identity(),
            one_tensor(60),
            4,
            sum(sizes),
            topology.hierarchical(sizes=tuple(sizes)),
        )
        # An agreement on whether all is finite is not needed: all ranks get the same.
        assert sum(sent for _, _, sent in found) / len(found) == pytest.approx(cost.sent_bytes)


def not_finite(world, algorithm, one):
    model, optimizer = trainable("toy", "plain")
    with world.attach(model, optimizer, {"algorithm": algorithm, "topology": one}):
        for step in range(9):
            loss = CASES["toy"].local_loss(model, step, world.rank)
            take_step(loss * (float("nan") if world.rank == 4 and step == 4 else 1.0), optimizer)


@pytest.mark.parametrize(
    ("algorithm", "one"),
    [("d_psgd", "ring"), ("hierarchical_local_sgd", {"hierarchical": {"sizes": [2, 3]}})],
)
def test_a_nan_is_an_error_on_ranks_that_do_not_hear_of_it_too(algorithm, one):
    def rank(group):
        from tests.engine.harness import World

        try:
            not_finite(World(group.rank(), 5, group), algorithm, one)
        except relaxcomm.NonFiniteError as error:
            return str(error)
        return "trained on"

    found = relaxcomm.simulate(rank, 5)
    assert all(text.startswith("step ") for text in found), found
    assert len({text.split(":")[0] for text in found}) == 1


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"algorithm": "selsync", "topology": "ring"}, "cannot use topology ring.*it can use complete"),
        ({"algorithm": "bsp", "topology": {"hierarchical": {"sizes": [1, 2]}}}, "it can use complete"),
        ({"algorithm": "hierarchical_local_sgd"}, "does not have.*hierarchical"),
        ({"algorithm": "hierarchical_local_sgd", "topology": "ring"}, "does not have"),
        ({"algorithm": "one_peer_exponential", "topology": "ring"}, "would not be used"),
        (
            {"algorithm": {"rules": [{"payload": "deltas", "exchange": "gossip"}]}},
            "keeps an anchor",
        ),
    ],
)
def test_topologies_that_cannot_be_used_are_refused(config, match):
    with pytest.raises(relaxcomm.CompositionError, match=match):
        relaxcomm.config.load(config)


@pytest.mark.ranks
def test_a_graph_that_does_not_fit_is_an_error_on_every_rank():
    with pytest.raises(Exception, match="power of two") as caught:
        on_gloo(train, 3, {"algorithm": "d_psgd", "topology": "hypercube"}, 1)
    assert {kind for kind, _ in caught.value.errors.values()} == {"TopologyError"}
    assert len(caught.value.errors) == 3


def differing(world):
    seed = 1 if world.rank == 2 else 0
    config = {"algorithm": "d_psgd", "topology": {"erdos_renyi": {"probability": 0.9, "seed": seed}}}
    train(world, config, 1)


def test_ranks_with_different_graphs_are_refused():
    with pytest.raises(relaxcomm.ConfigError, match="ranks disagree on topology"):
        in_process(differing, 3)
