"""Local SGD with adaptive batches against a reference of the norm test, in both estimators."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import relaxcomm.config
from relaxcomm.primitives import norm_test, sample_norm_test
from relaxcomm.roles import ExchangedBucket, MicroGradients
from tests.engine.harness import in_process, values
from tests.models import take_step

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
    from relaxcomm.network.transport import Membership

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
                variance = size / (size - 1) * spread / sum(1 / len(batch) for batch in batches)
                needed = variance / (size * eta**2 * (mean**2).sum())
            else:
                above = below = 0.0
                for rank, batch in enumerate(batches):
                    old = weights[rank], biases[rank]
                    weights[rank] = weights[rank] + 0.05 * gradients[rank][:10].reshape(2, 5)
                    biases[rank] = biases[rank] + 0.05 * gradients[rank][10:]
                    pieces = [batch[at : at + micro] for at in range(0, len(batch), micro)]
                    parts = [gradient(rank, piece) for piece in pieces]
                    weights[rank], biases[rank] = old
                    lengths = [len(piece) for piece in pieces]
                    middle = np.average(parts, axis=0, weights=lengths)
                    apart = sum(n * ((p - middle) ** 2).sum() for n, p in zip(lengths, parts, strict=True))
                    if len(parts) > 1:  # a smaller last batch may be too small
                        above += apart / (len(parts) - 1)
                        below += (middle**2).sum()
                needed = above / (eta**2 * below) if below else 0
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


@pytest.mark.parametrize("micro", [2, 3])
def test_samples_estimator_equals_its_reference(micro):
    """With 3 the micro-batches of a batch of 4 are of 3 samples and 1."""
    parameters = {**PARAMETERS, "tolerance": 0.6, "estimator": "samples"}
    sizes, history = reference(3, parameters, 40, micro=micro)
    assert max(sizes) > 4
    for rank, (batches, parameters_seen, _) in enumerate(in_process(adaptive, 3, parameters, 40, micro)):
        assert batches == sizes
        np.testing.assert_allclose(parameters_seen, [row[rank] for row in history], rtol=1e-9, atol=1e-12)


def alike(world, estimator, num_samples, batch_size, micro):
    """The batch sizes of three epochs of samples that are all the same."""
    x, y = torch.ones(num_samples, 5).double(), torch.ones(num_samples, 2).double()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    parameters = {"steps": 1, "tolerance": 0.01, "max_batch_size": 5000, "estimator": estimator}
    config = {"algorithm": {"name": "adaptive_local_sgd", **parameters}, "bucket_bytes": 20}
    sizes = []
    with world.attach(model, optimizer, config) as engine:
        data = TensorDataset(x, y)
        for _ in range(3):
            for batch in engine.loader(data, batch_size=batch_size):
                for (x, y), share in engine.micro_batches(batch, micro):
                    (share * loss_of(model, x, y)).backward()
                optimizer.step()
                optimizer.zero_grad()
                sizes.append(len(batch[0]))
    return sizes


def test_samples_that_are_all_alike_grow_no_batch():
    assert in_process(alike, 3, "samples", 195, 65, 64)[0] == [65] * 3
    assert in_process(alike, 3, "workers", 51, 16, 99)[0] == [16, 1] * 3
    assert (
        in_process(alike, 3, "samples", 195, 64, 33)[0] == [64, 1] * 3
    )  # one sample is no two micro-batches


def estimates(controller, contributions, trials):
    """The mean of S: gradients around one that is so long that their own length hardly matters."""
    draw = torch.Generator().manual_seed(5)
    true, found = torch.full((20,), 1e3, dtype=torch.float64), []
    for _ in range(trials):
        cx = SimpleNamespace(values={"batch_size": 1}, membership=SimpleNamespace(world_size=3))
        total = sum(controller.observe(cx, seen) for seen in contributions(true, draw))
        found.append(
            controller.decide(cx, total)["batch_size"] * controller.tolerance**2 * true.square().sum()
        )
    return float(torch.stack(found).mean())


def noisy(true, size, draw):
    """The mean gradient of so many samples of variance 1 an entry, thus a trace of 20."""
    return true + torch.randn(true.shape, generator=draw, dtype=torch.float64) / size**0.5


def of_workers(true, draw):
    sizes = (16, 3, 1)
    gradients = [noisy(true, size, draw) for size in sizes]
    mean = sum(gradients) / 3
    for size, gradient in zip(sizes, gradients, strict=True):
        for unit, part in enumerate((slice(0, 7), slice(7, 20))):
            yield ExchangedBucket(unit, gradient[part], mean[part], None, size)


def of_micro_batches(true, draw):
    for sizes in ((64, 1), (5, 5, 2), (8, 8)):
        total = sum(sizes)
        parts = [noisy(true, size, draw) for size in sizes]
        mean = sum(size / total * part for size, part in zip(sizes, parts, strict=True))
        squares = sum(size / total * part.square().sum() for size, part in zip(sizes, parts, strict=True))
        for unit in range(2):
            micro = MicroGradients(len(sizes), total, float(squares), float(mean.square().sum()))
            yield ExchangedBucket(unit, None, mean, micro)


def test_the_estimates_of_the_variance_are_unbiased():
    tolerance = 1e-6  # so small that rounding up to whole samples does not matter
    for controller, contributions, divisor in (
        (norm_test(rule=0, tolerance=tolerance), of_workers, 3),
        (sample_norm_test(rule=0, tolerance=tolerance), of_micro_batches, 1),
    ):
        found = estimates(controller, contributions, 3000) * divisor
        assert found == pytest.approx(20, rel=0.05)  # several standard errors of 3000 trials


def test_gradients_of_which_nothing_can_be_told_grow_no_batch():
    test = norm_test(rule=0, tolerance=0.5)
    for size, mean in ((3, 0.0), (3, -1.0), (1, 2.0)):  # zeros; a sketch's product may be negative; alone
        cx = SimpleNamespace(values={"batch_size": 4}, membership=SimpleNamespace(world_size=size))
        assert test.decide(cx, torch.tensor([2.0, mean, 0.5, 1.0])) == {}
    assert sample_norm_test(rule=0, tolerance=0.5).decide(cx, torch.tensor([2.0, 0.0])) == {}


def test_the_batch_stops_at_its_limit_and_the_test_with_it():
    sizes, _, _ = in_process(adaptive, 3, {**PARAMETERS, "tolerance": 0.05, "max_batch_size": 16}, 40)[0]
    assert set(sizes[8:]) <= {16, 8}  # an epoch's last batch is smaller
    assert sizes[:4] == [4, 4, 4, 4]


def grown(world, saved):
    """How large the first batch is, the last one before a run is saved, and what was saved."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    method = {"name": "adaptive_local_sgd", "steps": 4, "tolerance": 0.05, "max_batch_size": 16}
    with world.attach(model, optimizer, {"algorithm": method, "bucket_bytes": 20}) as engine:
        loader = engine.loader(TensorDataset(X, Y), batch_size=4)
        if saved is not None:
            engine.load_run_state_dict(saved[world.rank])
        sizes = []
        for x, y in loader:
            sizes.append(len(x))
            take_step(loss_of(model, x, y), optimizer)
            if len(sizes) == 10:
                break
        return sizes[0], sizes[-1], copy.deepcopy(engine.run_state_dict())


def test_a_resumed_run_goes_on_with_the_batch_that_had_grown():
    first = in_process(grown, 2, None)
    assert [one[:2] for one in first] == [(4, 16)] * 2
    assert [one[0] for one in in_process(grown, 2, [one[2] for one in first])] == [16, 16]


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


def split_by_hand(world):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    algorithm = {"name": "adaptive_local_sgd", "steps": 1, "max_batch_size": 8, "estimator": "samples"}
    with world.attach(model, optimizer, {"algorithm": algorithm}) as engine:
        for x, y in engine.loader(TensorDataset(X, Y), batch_size=4):
            with engine.no_sync():
                (0.75 * loss_of(model, x[:3], y[:3])).backward()
            (0.25 * loss_of(model, x[3:], y[3:])).backward()
            optimizer.step()


def test_samples_estimator_needs_to_know_their_sizes():
    with pytest.raises(relaxcomm.UsageError, match=r"split every batch with engine\.micro_batches"):
        in_process(split_by_hand, 3)


def after_a_skip(world, estimator):
    """Rank 1 skips the step before the one in which gradients are compared."""
    model, scaler = make_model(), torch.amp.GradScaler("cpu", init_scale=2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    parameters = {"steps": 2, "estimator": estimator, "tolerance": 99.0, "max_batch_size": 8}
    with world.attach(
        model, optimizer, {"algorithm": {"name": "adaptive_local_sgd", **parameters}}, scaler=scaler
    ) as engine:
        for step, batch in enumerate(engine.loader(TensorDataset(X[:72], Y[:72]), batch_size=4)):
            factor = math.inf if (step, world.rank) == (2, 1) else 1.0
            for (x, y), share in engine.micro_batches(batch, 2):
                scaler.scale(factor * share * loss_of(model, x, y)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


@pytest.mark.parametrize(("estimator", "test"), [("workers", norm_test), ("samples", sample_norm_test)])
def test_the_samples_of_a_step_are_none_of_one_that_a_scaler_has_skipped(estimator, test, monkeypatch):
    observe, found = test.observe, []

    def watch(self, cx, seen):
        found.append(seen.samples if seen.micro is None else seen.micro.samples)
        return observe(self, cx, seen)

    monkeypatch.setattr(test, "observe", watch)
    in_process(after_a_skip, 3, estimator)
    assert set(found) == {4}
    assert len(found) == 3 * 3, "three ranks, three exchanges"


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


def test_what_a_step_had_accumulated_is_forgotten_where_a_state_is_loaded():
    """As it had come in parts of sizes that nobody knew, the test could not be made."""
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = {"name": "adaptive_local_sgd", "steps": 1, "estimator": "samples", "max_batch_size": 64}
    with relaxcomm.attach(model, optimizer, {"algorithm": method}) as engine:
        batch = next(iter(engine.loader(TensorDataset(torch.randn(8, 3)), batch_size=4)))
        saved = engine.run_state_dict()
        with engine.no_sync():
            model(batch[0]).sum().backward()
        engine.load_run_state_dict(saved)
        optimizer.zero_grad()
        for (part,), share in engine.micro_batches(batch, 2):
            (model(part).square().mean() * share).backward()
        optimizer.step()
        assert engine.step == 1
