"""Push-sum over directed graphs against a reference; what it promises; what plain gossip refuses."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch

import relaxcomm
from relaxcomm import TopologyError, from_networkx, topology
from relaxcomm.checks.round_trip import context
from relaxcomm.network.operations import Label
from relaxcomm.primitives import identity, push_sum
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from tests import references
from tests.engine.harness import (
    assert_histories_agree,
    engine_state,
    in_process,
    simulated_workers,
    train,
)
from tests.models import CASES, take_step, trainable

STEPS = 30
LOOP = nx.DiGraph([(0, 1), (1, 2), (2, 0), (0, 2)])  # rank 0 sends to two, hears of one
LARGER = nx.DiGraph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2), (0, 3), (3, 1)])
HALVES = [nx.DiGraph([(0, 1), (1, 2), (0, 2)]), nx.DiGraph([(2, 0), (1, 0)])]


def pushing(graph, size):
    """P by hand: each rank gives equal parts to itself and along its links."""
    matrix = np.zeros((size, size))
    for j in range(size):
        heirs = [j, *graph.successors(j)]
        for i in heirs:
            matrix[i, j] = 1 / len(heirs)
    return matrix


def graph_of(*links, size=3):
    made = nx.DiGraph(list(links))
    made.add_nodes_from(range(size))
    return made


CASES_OF_GRAPHS = {
    "loop": (from_networkx(LOOP), 3, [pushing(LOOP, 3)]),
    "larger": (from_networkx(LARGER), 5, [pushing(LARGER, 5)]),
    "two": (from_networkx(nx.DiGraph([(0, 1), (1, 0)])), 2, [np.full((2, 2), 0.5)]),
    "in_turn": (
        topology.in_turn(topologies=[from_networkx(one) for one in HALVES]),
        3,
        [pushing(one, 3) for one in HALVES],
    ),
    "one_peer_4": (
        topology.one_peer_exponential(),
        4,
        [pushing(nx.DiGraph([(i, (i + hop) % 4) for i in range(4)]), 4) for hop in (1, 2)],
    ),
    "one_peer_5": (
        topology.one_peer_exponential(),
        5,
        [pushing(nx.DiGraph([(i, (i + hop) % 5) for i in range(5)]), 5) for hop in (1, 2, 4)],
    ),
}


@pytest.mark.every_other("name", "optimizer")
@pytest.mark.parametrize("optimizer", ["plain", "momentum"])
@pytest.mark.parametrize("name", CASES_OF_GRAPHS)
def test_sgp_equals_its_reference(name, optimizer):
    one, size, matrices = CASES_OF_GRAPHS[name]
    expected = references.sgp(simulated_workers(size, optimizer), STEPS, matrices)
    config = {"algorithm": "sgp", "topology": one}
    assert_histories_agree(in_process(train, size, config, STEPS, optimizer), expected)


def mixing(world, rounds, one, start, dtype, compressor):
    """Only mixing: learning rate 0. The rank's value after each round."""
    model = torch.nn.Linear(3, 2).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    rule = {"payload": "parameters", "exchange": "push_sum", "compressor": compressor}
    seen = []
    config = {"algorithm": {"rules": [rule]}, "topology": one, "bucket_bytes": 16}
    with world.attach(model, optimizer, config) as engine:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(start[world.rank])
        for _ in range(rounds):
            take_step(model(torch.ones(1, 3, dtype=dtype)).sum(), optimizer)
            seen.append(model.weight.detach()[0, 0].item())
        engine.close(average=False)
    return seen


@pytest.mark.parametrize("name", CASES_OF_GRAPHS)
def test_all_come_to_the_mean(name):
    """At the rate of the second eigenvalue of a period, whatever the graph."""
    one, size, matrices = CASES_OF_GRAPHS[name]
    start = np.random.default_rng(4).normal(size=size)
    rounds = 12 * len(matrices)
    history = np.array(in_process(mixing, size, rounds, one, start, torch.float64, "identity")).T
    product = np.eye(size)
    for matrix in matrices:
        product = matrix @ product
    rate = np.sort(np.abs(np.linalg.eigvals(product)))[-2]
    distance = np.abs(history[-1] - start.mean()).max()
    assert distance <= 20 * np.abs(start - start.mean()).max() * rate**12 + 1e-12
    assert np.abs(history[0] - start.mean()).max() > 1e-3 or rate < 1e-12


@pytest.mark.parametrize(
    ("dtype", "compressor"),
    [(torch.bfloat16, "identity"), (torch.float32, {"cast": {"dtype": "float16"}})],
)
def test_few_digits_in_the_message_do_not_spoil_the_weight(dtype, compressor):
    one, size, _ = CASES_OF_GRAPHS["larger"]
    start = np.linspace(1, 2, size)
    history = np.array(in_process(mixing, size, 60, one, start, dtype, compressor)).T
    np.testing.assert_allclose(history[-1], 1.5, rtol=0.04)


def with_buffers(world, one):
    """BatchNorm's statistics stay between the least and the largest of the ranks'."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with world.attach(model, optimizer, {"algorithm": "sgp", "topology": one}) as engine:
        model[1].running_mean.fill_(float(world.rank + 1))
        for _ in range(9):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        found = model[1].running_mean.clone()
        engine.close(average=False)
    return found.numpy()


def test_buffers_are_mixed_too():
    found = np.stack(in_process(with_buffers, 3, from_networkx(LOOP)))
    assert (found > 1).all()
    assert (found < 3).all()
    assert found.max() - found.min() < 0.1


def broken(world):
    model, optimizer = trainable("toy", "plain")
    with world.attach(model, optimizer, {"algorithm": "sgp", "topology": from_networkx(LOOP)}) as engine:
        for step in range(6):
            before = engine_state(engine)["slots"]
            loss = CASES["toy"].local_loss(model, step, world.rank)
            (loss * (float("nan") if world.rank == 1 and step == 3 else 1.0)).backward()
            try:
                optimizer.step()
            except relaxcomm.NonFiniteError as error:
                after = engine_state(engine)["slots"]
                engine.close(average=False)
                return str(error).split(":")[0], repr(before) == repr(after)
            optimizer.zero_grad()
    return "trained on"


def test_a_window_that_is_not_finite_changes_no_sum_anywhere():
    assert in_process(broken, 3) == [("step 3", True)] * 3


@pytest.mark.parametrize("algorithm", ["d_psgd", "choco_sgd"])
def test_plain_gossip_points_to_push_sum(algorithm):
    with pytest.raises(TopologyError, match=r"not balanced.*push_sum\(\)"):
        in_process(train, 3, {"algorithm": algorithm, "topology": from_networkx(LOOP)}, 1)


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (graph_of((0, 1), (1, 0), (1, 2)), "rank 0 never hears of ranks 2"),
        (graph_of((0, 1), (1, 0)), "falls into 2 parts"),
    ],
)
def test_graphs_in_which_somebody_is_not_heard_are_refused(graph, words):
    with pytest.raises(TopologyError, match=words):
        in_process(train, 3, {"algorithm": "sgp", "topology": from_networkx(graph)}, 1)


def test_what_sixteen_bits_cannot_hold_stays_on_its_rank():
    """The total of all sums moves by the updates alone, of which there are none."""

    def total(group):
        exchange, transport = push_sum(topology=topology.exponential()), group.transport()
        bucket = Bucket(0, [Item("weight", torch.full((3,), 1.1 + group.rank(), dtype=torch.bfloat16))])
        slots = dict(exchange.coding_slots(bucket, identity(), transport.membership))
        first, held = slots["sum"].clone(), bucket.items[0].tensor
        for index in range(5):
            running = exchange.run(context(group.rank(), 3).at(round=index), held, identity(), slots)
            sent = transport.issue(next(running), Label(index, "0")).wait()
            with pytest.raises(StopIteration) as stop:
                running.send(sent)
            held = stop.value.value
        return first, slots["sum"]

    before, after = zip(*relaxcomm.simulate(total, 3), strict=True)
    assert not torch.equal(before[0], after[0])
    torch.testing.assert_close(sum(after), sum(before), rtol=1e-6, atol=0.0)
