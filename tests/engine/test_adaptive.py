"""Local SGD with adaptive batches against a reference of the norm test, in both estimators."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import relaxcomm
from tests.engine.harness import in_process, on_gloo, values

DRAW = torch.Generator().manual_seed(9)
X = torch.randn(600, 5, generator=DRAW, dtype=torch.float64)
Y = X @ torch.randn(5, 2, generator=DRAW, dtype=torch.float64) + torch.randn(600, 2, generator=DRAW).double()


def make_model():
    model = torch.nn.Linear(5, 2).double()
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    return model


def loss_of(model, x, y):
    return (model(x) - y).square().mean()


def adaptive(world, parameters, steps, micro=None):
    """The batch sizes and parameters after each step."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    config = {"algorithm": {"name": "adaptive_local_sgd", **parameters}, "bucket_bytes": 20, "seed": 1}
    sizes, history = [], []
    with world.attach(model, optimizer, config) as engine:
        loader = engine.loader(TensorDataset(X, Y), batch_size=4)
        while len(sizes) < steps:
            for batch in loader:
                for (x, y), share in engine.micro_batches(batch, micro or 10**9):
                    (share * loss_of(model, x, y)).backward()
                optimizer.step()
                optimizer.zero_grad()
                sizes.append(len(batch[0]))
                history.append(values(model))
                if len(sizes) == steps:
                    break
        engine.close(average=False)
    return sizes, history, engine.statistics["samples"]


def reference(size, parameters, steps, micro=None):
    """The norm test in NumPy on gradients of a least-squares model; samplers are shared."""
    from relaxcomm.data import ShareSampler
    from relaxcomm.transport.base import Membership

    H, eta, most = parameters["steps"], parameters["tolerance"], parameters["max_batch_size"]
    samplers = [ShareSampler(600, batch_size=4, membership=Membership(r, size), seed=1) for r in range(size)]
    x, y = X.numpy(), Y.numpy()
    weights = [np.zeros((2, 5)) for _ in range(size)]
    biases = [np.zeros(2) for _ in range(size)]
    sizes, history, streams = [], [], [iter(s) for s in samplers]

    def gradient(rank, indices):
        error = 2 * (x[indices] @ weights[rank].T + biases[rank] - y[indices]) / (2 * len(indices))
        return np.concatenate([(error.T @ x[indices]).ravel(), error.sum(0)])

    for step in range(steps):
        batches = []
        for rank in range(size):
            try:
                batches.append(next(streams[rank]))
            except StopIteration:
                streams[rank] = iter(samplers[rank])
                batches.append(next(streams[rank]))
        gradients = np.array([gradient(rank, batch) for rank, batch in enumerate(batches)])
        b = samplers[0].batch_size
        for rank in range(size):
            weights[rank] = weights[rank] - 0.05 * gradients[rank][:10].reshape(2, 5)
            biases[rank] = biases[rank] - 0.05 * gradients[rank][10:]
        sizes.append(len(batches[0]))
        if (step + 1) % H == 0:
            if micro is None:
                mean = gradients.mean(0)
                spread = ((gradients - mean) ** 2).sum()
                needed = b / (size - 1) * spread / (size * eta**2 * (mean**2).sum())
            else:
                above = below = 0.0
                for rank, batch in enumerate(batches):
                    old = weights[rank], biases[rank]
                    weights[rank] = weights[rank] + 0.05 * gradients[rank][:10].reshape(2, 5)
                    biases[rank] = biases[rank] + 0.05 * gradients[rank][10:]
                    pieces = [batch[at : at + micro] for at in range(0, len(batch), micro)]
                    shares = [len(piece) / len(batch) for piece in pieces]
                    parts = [s * gradient(rank, piece) for s, piece in zip(shares, pieces, strict=True)]
                    weights[rank], biases[rank] = old
                    count, total = len(parts), sum(parts)
                    middle = total / count
                    above += count**2 / (count - 1) * sum(((p - middle) ** 2).sum() for p in parts) / count
                    below += (total**2).sum()
                needed = b * above / (eta**2 * below)
            for sampler in samplers:
                sampler.batch_size = min(max(b, math.ceil(needed)), max(most, b))
            weights = [sum(weights) / size] * size
            biases = [sum(biases) / size] * size
        history.append([np.concatenate([w.ravel(), c]) for w, c in zip(weights, biases, strict=True)])
    return sizes, history


PARAMETERS = {"steps": 4, "tolerance": 0.8, "max_batch_size": 64}


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("tolerance", [0.5, 0.8])
def test_workers_estimator_equals_its_reference(size, tolerance):
    parameters = {**PARAMETERS, "tolerance": tolerance}
    sizes, history = reference(size, parameters, 60)
    found = in_process(adaptive, size, parameters, 60)
    assert sizes[0] == 4
    assert max(sizes) > 4, "the case must grow"
    for rank, (batches, parameters_seen, samples) in enumerate(found):
        assert batches == sizes
        np.testing.assert_allclose(parameters_seen, [row[rank] for row in history], rtol=1e-9, atol=1e-12)
        assert samples in (sum(sizes), sum(sizes) - sizes[-1])  # the last may not have been asked on from


def test_samples_estimator_equals_its_reference():
    parameters = {**PARAMETERS, "tolerance": 0.6, "estimator": "samples"}
    sizes, history = reference(3, parameters, 40, micro=2)
    assert max(sizes) > 4
    for rank, (batches, parameters_seen, _) in enumerate(in_process(adaptive, 3, parameters, 40, 2)):
        assert batches == sizes
        np.testing.assert_allclose(parameters_seen, [row[rank] for row in history], rtol=1e-9, atol=1e-12)


@pytest.mark.ranks
def test_on_gloo(debug):
    sizes, _ = reference(3, PARAMETERS, 30)
    for batches, _, _ in on_gloo(adaptive, 3, PARAMETERS, 30, debug=debug):
        assert batches == sizes


def test_the_batch_stops_at_its_limit_and_the_test_with_it():
    sizes, _, _ = in_process(adaptive, 3, {**PARAMETERS, "tolerance": 0.05, "max_batch_size": 16}, 40)[0]
    assert set(sizes[8:]) <= {16, 8}  # an epoch's last batch is smaller
    assert sizes[:4] == [4, 4, 4, 4]


def test_one_worker_has_nothing_to_compare():
    assert set(in_process(adaptive, 1, PARAMETERS, 20)[0][0]) == {4}


def without_loader(world):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    algorithm = {"name": "adaptive_local_sgd", "max_batch_size": 8}
    with world.attach(model, optimizer, {"algorithm": algorithm}):
        loss_of(model, X[:4], Y[:4]).backward()


def test_it_refuses_to_start_without_the_engines_loader():
    with pytest.raises(relaxcomm.UsageError, match=r"engine\.loader"):
        in_process(without_loader, 3)


def test_samples_estimator_needs_micro_batches():
    with pytest.raises(relaxcomm.UsageError, match="at least 2 micro-batches"):
        in_process(adaptive, 3, {**PARAMETERS, "estimator": "samples"}, 8)


def test_controllers_that_see_nothing_are_refused():
    rule = {"payload": "gradients", "exchange": "all_reduce", "outer": "observe"}
    base = {"payload": "parameters", "exchange": "all_reduce"}
    for algorithm in (
        {"rules": [base, rule]},
        {"rules": [base], "controllers": [{"norm_test": {"rule": 0, "tolerance": 0.8}}]},
        {"rules": [base, rule], "controllers": [{"norm_test": {"rule": 2, "tolerance": 0.8}}]},
    ):
        with pytest.raises(relaxcomm.CompositionError):
            relaxcomm.config.load({"algorithm": algorithm})
