"""FedAvg and its family against references: several clients a worker, own optimizer states, servers."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import relaxcomm.config
from relaxcomm.data import ClientSampler, RoundPlan, by_label
from relaxcomm.network.transport import Membership
from relaxcomm.primitives import client_deltas
from tests.engine.harness import in_process, values
from tests.models import take_step

SAMPLES, BATCH = 50, 4
DRAW = torch.Generator().manual_seed(3)
X = torch.randn(SAMPLES, 6, generator=DRAW, dtype=torch.float64)
Y = torch.randint(0, 3, (SAMPLES,), generator=DRAW)


def make_model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).double()


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.8)


def federated(world, parameters, rounds):
    model = make_model()
    optimizer = make_optimizer(model)
    config = {
        "algorithm": {"name": "fedavg", **parameters},
        "bucket_bytes": 200,
        "data": {"partition": "by_label"},
        "seed": 4,
    }
    history = []
    with world.attach(model, optimizer, config) as engine:
        loader = engine.loader(TensorDataset(X, Y), batch_size=BATCH)
        for _ in range(rounds):
            for x, y in loader:
                take_step(torch.nn.functional.cross_entropy(model(x), y), optimizer)
            history.append(values(model))
    return history, engine.statistics["synchronisations"], engine.statistics["samples"]


def reference(size, parameters, rounds):
    """Every sampled client trained on its own, then one server step; NumPy for what the server does."""
    count = parameters.get("clients") or size
    plan = RoundPlan(parameters.get("epochs", 1), parameters.get("fraction", 1.0), parameters.get("clients"))
    labels = np.unique(Y.numpy(), return_inverse=True)[1]
    parts = by_label().parts(SAMPLES, labels, count, 4)
    server, lr = parameters.get("server", "average"), parameters.get("server_lr", 1.0)
    momentum, tau, mu = 0.9, parameters.get("tau", 1e-3), parameters.get("proximal", 0.0)
    model = make_model()
    shared = values(model)
    m, v = np.zeros_like(shared), np.full_like(shared, tau**2)
    states, history = {}, []
    for index in range(rounds):
        moved, weight = np.zeros_like(shared), 0
        for client in plan.sampled(size, index, 4):
            player = ClientSampler(
                SAMPLES,
                plan,
                batch_size=BATCH,
                membership=Membership(client % size, size),
                seed=4,
                partition=by_label(),
                labels=labels,
            )
            torch.nn.utils.vector_to_parameters(torch.from_numpy(shared.copy()), model.parameters())
            optimizer = make_optimizer(model)
            optimizer.state = states.setdefault(client, defaultdict(dict))
            for batch in player.round(index):
                if batch.client != client:
                    continue
                loss = torch.nn.functional.cross_entropy(model(X[batch.indices]), Y[batch.indices])
                now = torch.nn.utils.parameters_to_vector(model.parameters())
                loss = loss + mu / 2 * (now - torch.from_numpy(shared)).square().sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            moved += len(parts[client]) * (shared - values(model))
            weight += len(parts[client])
        delta = moved / weight
        if server == "average":
            shared = shared - lr * delta
        elif server == "sgd":
            m = momentum * m + delta
            shared = shared - lr * m
        else:
            beta = 0.0 if server == "adagrad" else momentum
            m = beta * m + (1 - beta) * delta
            if server == "adagrad":
                v = v + delta**2
            elif server == "adam":
                v = 0.99 * v + 0.01 * delta**2
            else:
                v = v - 0.01 * delta**2 * np.sign(v - delta**2)
            shared = shared - lr * m / (np.sqrt(v) + tau)
        history.append(shared)
    return history


CASES = {
    "plain": {},
    "epochs": {"epochs": 3},
    "clients": {"clients": 7},
    "sampled": {"clients": 8, "fraction": 0.4, "epochs": 2},
    "one of many": {"clients": 6, "fraction": 0.05},
    "proximal": {"proximal": 0.5, "epochs": 2},
    "sgd": {"server": "sgd", "server_lr": 0.7},
    "adam": {"server": "adam", "server_lr": 0.05, "tau": 0.01},
    "yogi": {"server": "yogi", "server_lr": 0.05, "tau": 0.01},
    "adagrad": {"server": "adagrad", "server_lr": 0.1, "tau": 0.01},
}


@pytest.mark.every_other("name", "size")
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_fedavg_equals_its_reference(name, size):
    expected = reference(size, CASES[name], 6)
    for history, synchronisations, _ in in_process(federated, size, CASES[name], 6):
        np.testing.assert_allclose(history, expected, rtol=1e-8, atol=1e-10)
        assert synchronisations == 6


def proximal_under_a_scaler(world, scale):
    model, scaler = make_model(), torch.amp.GradScaler("cpu", init_scale=scale)
    model.register_parameter("unused", torch.nn.Parameter(torch.ones(2)))  # of which no gradient is pulled
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, fused=True)  # which unscales gradients itself
    config = {"algorithm": {"name": "fedavg", "proximal": 0.5, "epochs": 2}}
    with world.attach(model, optimizer, config, scaler=scaler) as engine:
        for x, y in engine.loader(TensorDataset(X, Y), batch_size=BATCH):
            scaler.scale(torch.nn.functional.cross_entropy(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return values(model)


def test_a_scaler_scales_the_proximal_term_too():
    one, other = (in_process(proximal_under_a_scaler, 2, scale)[0] for scale in (1.0, 1024.0))
    np.testing.assert_allclose(one, other, rtol=1e-9)


def test_samples_of_all_sampled_clients_are_read_epochs_times():
    found = in_process(federated, 3, {"epochs": 2, "clients": 5}, 4)
    assert sum(samples for _, _, samples in found) == 4 * 2 * SAMPLES


CONSTANTS = torch.linspace(0.1, 1.0, 97)
"""Some of which float32 does not bring back when they are multiplied and divided by a number of samples."""


def buffers(world, config):
    """Statistics of features that are 10 everywhere, constants, and the batches of this worker."""
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    model.register_buffer("constants", CONSTANTS.clone())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with world.attach(model, optimizer, {"algorithm": {"name": "fedavg", **config}}) as engine:
        for _ in range(3):
            for x in engine.loader(torch.full((42, 3), 10.0), batch_size=2):
                model(x).square().mean().backward()
                optimizer.step()
        constants = model.constants.clone()  # before the mean at the end
    return float(model[0].running_mean[0]), constants, int(model[0].num_batches_tracked)


def test_workers_without_a_client_do_not_dilute_buffers():
    found = in_process(buffers, 3, {"clients": 3, "fraction": 0.3})
    assert min(batches for _, _, batches in found) < 21 == sum(batches for _, _, batches in found)
    for mean, constants, _ in found:
        assert mean == pytest.approx(10 * (1 - 0.9**21))
        assert torch.equal(constants, CONSTANTS), "what is equal everywhere stays as it is"


def half(world, samples):
    model = torch.nn.Linear(4, 1, bias=False).half()
    torch.nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with world.attach(model, optimizer, {"algorithm": {"name": "fedavg", "clients": 4}}) as engine:
        for _ in engine.loader(range(samples), batch_size=samples):
            take_step(model(torch.ones(2, 4, dtype=torch.float16)).mean(), optimizer)
    return model.weight.flatten().tolist()


def test_more_samples_than_float16_holds():
    assert in_process(half, 2, 160_000) == in_process(half, 2, 1_000)


def misused(world, kind):
    model = make_model()
    optimizer = make_optimizer(model)
    with world.attach(model, optimizer, {"algorithm": "fedavg"}) as engine:
        if kind == "two loaders":
            for data in (TensorDataset(X, Y), TensorDataset(X[1:], Y[1:])):
                engine.loader(data, batch_size=4, partition=by_label())
        if kind in ("client", "round"):
            engine.mark(kind, samples=3)
        torch.nn.functional.cross_entropy(model(X), Y).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        ("two loaders", "second one"),
        ("client", "'client' would count twice"),
        ("round", "'round' would count twice"),
        ("no loader", "engine.loader"),
    ],
)
def test_use_that_would_exchange_nothing_or_twice_is_refused(kind, match):
    with pytest.raises(relaxcomm.UsageError, match=match):
        in_process(misused, 3, kind)


@pytest.mark.parametrize(
    ("server", "more"),
    [
        ("adagrad", {"server_momentum": 0.5}),
        ("average", {"server_momentum": 0.9}),
        ("average", {"tau": 1e-3}),
        ("sgd", {"tau": 0.1}),
    ],
)
def test_what_a_server_does_not_have_is_refused(server, more):
    with pytest.raises(relaxcomm.CompositionError, match=f"server '{server}' has no {next(iter(more))}"):
        relaxcomm.config.load({"algorithm": {"name": "fedavg", "server": server, **more}})


ROUND = {"payload": "client_deltas", "exchange": "all_reduce", "trigger": "every_round", "select": "weight"}


@pytest.mark.parametrize(
    ("rules", "match"),
    [
        ([ROUND, {"payload": "gradients", "exchange": "all_reduce", "select": "bias"}], "numbers of steps"),
        ([{"payload": "parameters", "exchange": "all_reduce"}, ROUND], "numbers of steps"),
        ([ROUND, {**ROUND, "trigger": {"every_round": {"clients": 7}}, "select": "bias"}], "differently"),
        ([{**ROUND, "active": [0, 9]}], "leave active out"),
    ],
)
def test_rules_that_clients_cannot_follow_together_are_refused(rules, match):
    with pytest.raises(relaxcomm.CompositionError, match=match):
        relaxcomm.config.load({"algorithm": {"rules": rules}})


def test_rules_of_the_same_clients_stand_beside_each_other():
    config = relaxcomm.config.load({"algorithm": {"rules": [ROUND, {**ROUND, "select": "bias"}]}})
    assert config.algorithm.round_plan == RoundPlan(epochs=1, fraction=1.0, clients=None)


@pytest.mark.parametrize(
    "rule",
    [
        {"payload": "client_deltas", "exchange": "all_reduce"},
        {"payload": "deltas", "exchange": "all_reduce", "trigger": "every_round"},
        {"payload": "client_deltas", "exchange": "all_reduce", "trigger": "every_round", "delay": 1},
        {
            "payload": "client_deltas",
            "exchange": "all_gather",
            "trigger": "every_round",
            "compressor": {"error_feedback": {"top_k": {"density": 0.1}}},
        },
    ],
)
def test_compositions_that_cannot_work_are_refused(rule):
    with pytest.raises(relaxcomm.CompositionError):
        relaxcomm.config.load({"algorithm": {"rules": [rule]}})


def test_a_round_without_any_sample_is_refused():
    """As where a sharded replica's ranks are more than a client has samples, so that none has a batch."""
    with pytest.raises(relaxcomm.UsageError, match="no client has trained"):
        client_deltas().finalize(None, None, {}, torch.zeros(3))
