"""Gossip of compressed differences: CHOCO, DCD and Bagua's ring against references with all replicas."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch

import relaxcomm.config
from relaxcomm import CompositionError, Rule, from_networkx, primitives, topology
from relaxcomm.network.operations import Label
from relaxcomm.primitives import choco_gossip, dcd_gossip, parameters
from relaxcomm.roles import Context
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from tests import references
from tests.algorithms.test_low_precision_algorithms import BLOCK, levels
from tests.algorithms.test_sparse_algorithms import bucket_places
from tests.engine.harness import (
    assert_histories_agree,
    engine_state,
    in_process,
    simulated_workers,
    train,
)
from tests.engine.test_gossip_situations import uneven
from tests.models import CASES, take_step, trainable

STEPS = 30
BUCKET_BYTES = 1200  # two buckets of the toy model
GRAPHS = {
    "ring": (topology.ring(), 5),
    "star": (topology.star(), 4),
    "path": (from_networkx(nx.path_graph(3)), 3),
    "exponential": (topology.exponential(), 5),
    "two": (topology.ring(), 2),
    "one": (topology.ring(), 1),
}


def rounded(x, worker, bucket):
    return levels(x, bits=6)


def largest(x, worker, bucket):
    """A tenth of the entries."""
    found = np.argsort(-np.abs(x))[: max(1, len(x) // 10)]
    return np.where(np.isin(np.arange(len(x)), found), x, 0.0)


def whole(x, worker, bucket):
    return x


CODERS = {
    "quantize": ({"quantize": {"bits": 6, "block_size": BLOCK}}, rounded),
    "top_k": ({"top_k": {"density": 0.1, "scope": "bucket"}}, largest),
    "identity": ("identity", whole),
}


def settings(algorithm, one=None, **more):
    """A configuration, and where the entries of its buckets lie."""
    config = {"algorithm": algorithm, "bucket_bytes": BUCKET_BYTES, **more}
    if one is not None:
        config["topology"] = one
    places = in_process(bucket_places, 3, {"algorithm": "local_sgd", "bucket_bytes": BUCKET_BYTES})[0]
    assert len(places) >= 2
    return config, places


@pytest.mark.every_other("graph", "coder", of=3)
@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_choco_equals_its_reference(graph, coder):
    (one, size), (compressor, code) = GRAPHS[graph], CODERS[coder]
    config, places = settings({"name": "choco_sgd", "gamma": 0.3, "compressor": compressor}, one)
    expected = references.choco_sgd(simulated_workers(size), STEPS, one.matrix(size), 0.3, code, places)
    assert_histories_agree(in_process(train, size, config, STEPS), expected)


@pytest.mark.every_other("graph", "optimizer", of=3)
@pytest.mark.parametrize("optimizer", ["plain", "adamw"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_dcd_equals_its_reference(graph, optimizer):
    (one, size), (compressor, code) = GRAPHS[graph], CODERS["quantize"]
    config, places = settings({"name": "dcd_psgd", "compressor": compressor}, one)
    expected = references.dcd_psgd(simulated_workers(size, optimizer), STEPS, one.matrix(size), code, places)
    assert_histories_agree(in_process(train, size, config, STEPS, optimizer), expected)


@pytest.mark.parametrize("size", [3, 4, 5])
def test_the_low_precision_ring_is_baguas(size):
    compressor, code = CODERS["quantize"]
    config, places = settings({"name": "low_precision_decentralized", "compressor": compressor})
    expected = references.bagua_low_precision(simulated_workers(size), STEPS, code, places)
    assert_histories_agree(in_process(train, size, config, STEPS), expected)


def test_the_low_precision_ring_of_two_and_one():
    """Bagua has no such rings: two mix half and half, and one trains alone."""
    compressor, code = CODERS["quantize"]
    config, places = settings({"name": "low_precision_decentralized", "compressor": compressor})
    for matrix in (np.full((2, 2), 0.5), np.ones((1, 1))):
        size = len(matrix)
        expected = references.dcd_psgd(simulated_workers(size), STEPS, matrix, code, places)
        assert_histories_agree(in_process(train, size, config, STEPS), expected)


def test_without_loss_dcd_is_d_psgd_without_delay():
    one = topology.ring()
    rule = {"payload": "parameters", "exchange": "dcd_gossip"}
    config, _ = settings({"rules": [rule]}, one)
    workers = simulated_workers(5, "plain")
    expected, matrix = [], one.matrix(5)
    for step in range(STEPS):
        before, gradients = workers.parameters, workers.gradients(step)
        workers.parameters = matrix @ before
        workers.update(gradients)
        expected.append(workers.parameters)
    assert_histories_agree(in_process(train, 5, config, STEPS, "plain"), references.finish(workers, expected))


def mixing(world, rounds, config, start):
    """Only mixing: learning rate 0. After each round the rank's values and its replicas."""
    model = torch.nn.Linear(7, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    seen = []
    with world.attach(model, optimizer, {**config, "bucket_bytes": 32}) as engine:
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(torch.tensor(start[world.rank]), model.parameters())
        for _ in range(rounds):
            take_step(model(torch.ones(1, 7).double()).sum(), optimizer)
            slots = [found["compressor"] for _, _, found in engine_state(engine)["slots"]]
            replicas = [
                torch.cat([one[name] for one in slots]).numpy() for name in ("public_copy", "disagreement")
            ]
            seen.append([values_in_buckets(model, engine), *replicas])
        engine.close(average=False)
    return np.array(seen)


def values_in_buckets(model, engine):
    named = dict(model.named_parameters())
    names = [name for bucket in engine_state(engine)["layout"] for name in bucket]
    return np.concatenate([named[name].detach().numpy().reshape(-1) for name in names])


@pytest.mark.every_other("coder", "size")
@pytest.mark.parametrize("size", [2, 5, 6])
@pytest.mark.parametrize("coder", ["top_k", "quantize"])
def test_choco_keeps_the_mean_and_contracts_as_its_theorem_says(size, coder):
    """Theorem 2 of Koloskova et al.: e_t <= (1 - delta rho^2 / 82)^t e_0 with their gamma."""
    one, numel = topology.ring(), 24
    compressor = {"top_k": {"density": 0.25}} if coder == "top_k" else {"quantize": {"bits": 8}}
    delta = 0.25 if coder == "top_k" else 0.99  # E ||C(x) - x||^2 <= (1 - delta) ||x||^2
    matrix = one.matrix(size)
    eigenvalues = np.sort(np.abs(np.linalg.eigvalsh(matrix)))
    rho, beta = 1 - eigenvalues[-2], np.linalg.norm(np.eye(size) - matrix, 2)
    gamma = rho**2 * delta / (16 * rho + rho**2 + 4 * beta**2 + 2 * rho * beta**2 - 8 * rho * delta)
    rule = {
        "payload": "parameters",
        "compressor": compressor,
        "exchange": {"choco_gossip": {"gamma": float(gamma)}},
    }
    start = np.random.default_rng(size).normal(size=(size, numel))
    config = {"algorithm": {"rules": [rule]}, "topology": one}
    found = np.stack(in_process(mixing, size, 60, config, start), axis=1)  # [rounds, workers, which, numel]
    x, public, disagreement = (found[:, :, which] for which in range(3))
    np.testing.assert_allclose(x.mean(axis=1), np.broadcast_to(x[0].mean(axis=0), (60, numel)), atol=1e-12)
    np.testing.assert_allclose(np.sort(x[0].mean(axis=0)), np.sort(start.mean(axis=0)), atol=1e-12)
    np.testing.assert_allclose(
        disagreement, np.einsum("ij,tjd->tid", matrix - np.eye(size), public), atol=1e-12
    )
    mean = x.mean(axis=1, keepdims=True)
    # e_t pairs x_t with the public copies of t + 1.
    error = ((x[:-1] - mean[:-1]) ** 2).sum(axis=(1, 2)) + ((x[:-1] - public[1:]) ** 2).sum(axis=(1, 2))
    bound = error[0] * (1 - delta * rho**2 / 82) ** np.arange(59)
    assert (error <= bound * (1 + 1e-9) + 1e-20).all()
    assert error[-1] < 0.9 * error[0]


def test_with_all_sent_choco_contracts_at_the_gaps_rate():
    """And gamma 1 it is gossip: from the slowest start the distance shrinks by just 1 - gap."""
    one, size = topology.ring(), 7
    _, vectors = np.linalg.eigh(one.matrix(size))
    rule = {"payload": "parameters", "exchange": {"choco_gossip": {"gamma": 1.0}}}
    start = np.outer(vectors[:, -2], np.ones(24))
    found = np.stack(in_process(mixing, size, 9, {"algorithm": {"rules": [rule]}, "topology": one}, start))
    shrunk = np.linalg.norm(found[:, -1, 0]) / np.linalg.norm(start)
    assert shrunk == pytest.approx((1 - one.spectral_gap(size)) ** 9)


@pytest.mark.parametrize(("one", "size"), [(topology.ring(), 2), (topology.ring(), 5), (topology.star(), 4)])
def test_dcd_contracts_at_the_gaps_rate_while_messages_lose_little(one, size):
    """The loss is a share of the message, which shrinks as ranks come together, so the rate is gossip's."""
    compressor = {"quantize": {"bits": 8, "rounding": "stochastic"}}
    rule = {"payload": "parameters", "compressor": compressor, "exchange": "dcd_gossip"}
    start = np.random.default_rng(2).normal(size=(size, 24))
    config = {"algorithm": {"rules": [rule]}, "topology": one}
    x = np.stack(in_process(mixing, size, 16, config, start), axis=1)[:, :, 0]
    distance = np.sqrt(((x - x.mean(axis=1, keepdims=True)) ** 2).sum(axis=(1, 2)))
    first = np.sqrt(((start - start.mean(axis=0)) ** 2).sum())
    bound = first * (1 - one.spectral_gap(size)) ** np.arange(16)  # the first exchange tells where all are
    assert (distance[:8] <= 1.3 * bound[:8] + 0.02 * first).all()
    assert distance[-1] < 0.05 * first
    moved = np.abs(np.sort(x[-1].mean(axis=0)) - np.sort(start.mean(axis=0))).max()
    assert moved < 0.05, "the mean moves only by what is lost"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_replicas_do_not_drift_in_short_types(dtype):
    """What a rank keeps of its neighbours is still what they keep of themselves, after 2,000 roundings."""
    one, size = topology.ring(), 3
    exchange = choco_gossip(gamma=0.5, topology=one)
    generators = [torch.Generator().manual_seed(rank) for rank in range(size)]

    def rank(group):
        transport, me = group.transport(), group.rank()
        bucket = Bucket(0, [Item("p", torch.ones(50, dtype=dtype))])
        state = dict(exchange.coding_slots(bucket, primitives.identity(), transport.membership))
        cx = Context(0, 0, transport.membership, lambda bucket: 0.1)
        x = torch.ones(50, dtype=dtype)
        for step in range(2000):
            x = x + 0.1 * torch.randn(50, generator=generators[me]).to(dtype)
            running = exchange.run(cx, x.clone(), primitives.identity(), state)
            received = transport.issue(next(running), Label(step, "0")).wait()
            with pytest.raises(StopIteration) as stop:
                running.send(received)
            x = stop.value.value
        return state["public_copy"].numpy(), state["disagreement"].numpy()

    public, disagreement = (np.stack(rows) for rows in zip(*relaxcomm.simulate(rank, size), strict=True))
    np.testing.assert_allclose(disagreement, (one.matrix(size) - np.eye(size)) @ public, rtol=0, atol=2e-5)


def broken(world, algorithm, one):
    """Rank 1 meets a NaN in step 4: what the ranks raise, and whether they kept anything of that step."""
    model, optimizer = trainable("toy", "plain")
    with world.attach(model, optimizer, {"algorithm": algorithm, "topology": one}) as engine:
        for step in range(6):
            before = engine_state(engine)["slots"]
            loss = CASES["toy"].local_loss(model, step, world.rank)
            (loss * (float("nan") if world.rank == 1 and step == 4 else 1.0)).backward()
            try:
                optimizer.step()
            except relaxcomm.NonFiniteError as error:
                kept = engine_state(engine)["slots"]
                same = all(
                    torch.equal(a[2]["compressor"][name], b[2]["compressor"][name])
                    for a, b in zip(before, kept, strict=True)
                    for name in ("public_copy", "disagreement")
                )
                engine.close(average=False)
                return str(error).split(":")[0], same
            optimizer.zero_grad()
    return "trained on", True


@pytest.mark.parametrize("name", ["choco_sgd", "dcd_psgd"])
def test_a_window_that_is_not_finite_changes_no_replica_anywhere(name):
    found = in_process(broken, 5, name, "ring")
    assert found == [("step 4", True)] * 5


@pytest.mark.parametrize("name", ["choco_sgd", "dcd_psgd", "sgp"])
def test_ranks_with_uneven_data_end_with_one_model_and_go_on(name):
    """The model that all take over in the end is no surprise to the replicas."""
    ends = in_process(uneven, 3, {"algorithm": name, "topology": "ring"}, 3)
    for rank in ends[1:]:
        np.testing.assert_array_equal(rank, ends[0])
    assert len({tuple(end) for end in np.round(ends[0], 12)}) == 3, "the last one is the third's"
    assert np.abs(ends[0]).max() < 2


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"exchange": choco_gossip(gamma=0.5), "payload": primitives.gradients()}, "payload parameters"),
        ({"exchange": dcd_gossip(), "payload": primitives.deltas()}, "anchor"),
        (
            {
                "exchange": choco_gossip(gamma=0.5),
                "compressor": primitives.error_feedback(compressor=primitives.sign()),
            },
            r"twice; use sign\(\)",
        ),
        (
            {"exchange": choco_gossip(gamma=0.5), "compressor": primitives.power_sgd(matrix_rank=2)},
            "cannot show each rank",
        ),
        ({"exchange": dcd_gossip(topology=topology.one_peer_exponential())}, "changes from step to step"),
    ],
)
def test_what_cannot_work_is_refused(rule, words):
    with pytest.raises(CompositionError, match=words):
        Rule(**{"payload": parameters(), **rule})


def test_only_dcd_warns_of_what_is_lost_for_good():
    with pytest.warns(relaxcomm.CompositionWarning, match="for good"):
        Rule(payload=parameters(), exchange=dcd_gossip(), compressor=primitives.sign())
    Rule(payload=parameters(), exchange=choco_gossip(gamma=0.5), compressor=primitives.sign())


@pytest.mark.parametrize("algorithm", ["choco_sgd", "dcd_psgd"])
def test_graphs_that_change_or_fall_apart_are_refused(algorithm):
    with pytest.raises(CompositionError, match="changes from step to step"):
        relaxcomm.config.load({"algorithm": algorithm, "topology": "one_peer_exponential"})
    apart = from_networkx(nx.Graph([(0, 1), (2, 3)]))
    with pytest.raises(relaxcomm.TopologyError, match="falls into 2 parts"):
        in_process(train, 4, {"algorithm": algorithm, "topology": apart}, 1)


def complex_numbers(group, algorithm):
    """What is left of each rank's own number after two exchanges."""
    weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    config = {"algorithm": algorithm, "topology": "ring"}
    model = torch.nn.ParameterList([weight])
    with relaxcomm.attach(model, optimizer, config, process_group=group) as engine:
        for step in range(2):
            optimizer.zero_grad()
            own = group.rank() if step == 0 else 0
            (-own * (weight.real + 2 * weight.imag).sum()).backward()
            optimizer.step()
        engine.close(average=False)
    return weight.detach()


@pytest.mark.parametrize(
    "algorithm", [{"name": "choco_sgd", "gamma": 1.0}, {"name": "dcd_psgd"}], ids=lambda one: one["name"]
)
def test_both_parts_of_complex_parameters_are_mixed(algorithm):
    ranks = relaxcomm.simulate(
        lambda group: complex_numbers(group, {**algorithm, "compressor": "identity"}), 4
    )
    assert len({one.real[0].item() for one in ranks}) > 1
    for one in ranks:
        torch.testing.assert_close(one.imag, 2 * one.real)
    assert max(one.real[0].item() for one in ranks) < 2.5
