"""Centralised low-precision algorithms against references: 3 ranks, several buckets, odd sizes."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np
import pytest
import torch

import relaxcomm
from relaxcomm import primitives
from tests import references
from tests.algorithms.test_sparse_algorithms import bucket_places, rules
from tests.engine.harness import (
    assert_histories_agree,
    engine_state,
    in_process,
    simulated_workers,
    train,
)
from tests.models import CASES, make_optimizer

STEPS = 32
BUCKET_BYTES = 1200  # two buckets of the toy model
BLOCK = 16


def levels(x, who=None, bits=8):
    """Blockwise rounding to the nearest of `2^bits` levels between least and largest."""
    return np.concatenate(
        [whole_levels(x[start : start + BLOCK], who, bits) for start in range(0, len(x), BLOCK)]
    )


def whole_levels(x, who=None, bits=8):
    """Those of one block; where 0 lies between, of more than two bits it is one of them."""
    low, high = x.min(), x.max()
    is_moved = low < 0 <= high and bits > 2
    step = (high - low) / (2**bits - (2 if is_moved else 1))
    if step == 0:
        return x.copy()
    if is_moved:
        low = np.floor(low / step) * step
    return low + np.floor((x - low) / step + 0.5) * step


class Remembering:
    """Error feedback around a coder, for every `who` of every bucket."""

    def __init__(self, code):
        self.code, self.kept = code, defaultdict(float)

    def __call__(self, x, who):
        wanted = x + self.kept[who]
        sent = self.code(wanted, who)
        self.kept[who] = wanted - sent
        return sent


def against(algorithm, combine, optimizer="momentum", bucket_bytes=BUCKET_BYTES, steps=STEPS):
    """Hold a configured algorithm against `combine(rows, step, bucket)`."""
    config = {"algorithm": algorithm, "bucket_bytes": bucket_bytes}
    places = in_process(bucket_places, 3, config)[0]
    assert len(places) >= 2
    expected = references.coded_sgd(simulated_workers(3, optimizer), steps, combine, places)
    assert_histories_agree(in_process(train, 3, config, steps, optimizer), expected)


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_bytegrad(optimizer):
    def combine(rows, step, bucket):
        return references.scattered(rows, levels, levels)

    against({"name": "bytegrad", "block_size": BLOCK}, combine, optimizer)


@pytest.mark.parametrize("server_feedback", [False, True])
def test_scatter_gather_with_error_feedback(server_feedback):
    """On one side or on both; with fewer bits, means of codes would lie half-way between two."""

    def coarse(x, who):
        return levels(x, who, bits=5)

    first = [Remembering(coarse), Remembering(coarse)]
    second = [Remembering(coarse), Remembering(coarse)] if server_feedback else [coarse, coarse]
    compressor = {"error_feedback": {"quantize": {"bits": 5, "block_size": BLOCK}}}
    against(
        rules(compressor, {"scatter_gather": {"server_feedback": server_feedback}}),
        lambda rows, step, bucket: references.scattered(rows, first[bucket], second[bucket]),
    )


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("bucket_bytes", [64, 1 << 20])
def test_scatter_gather_in_full_precision_is_bsp(size, bucket_bytes):
    """Also where a bucket has fewer entries than there are ranks."""
    config = {"algorithm": rules("identity", "scatter_gather"), "bucket_bytes": bucket_bytes}
    expected = references.bsp(simulated_workers(size), 5)
    assert_histories_agree(in_process(train, size, config, 5), expected)


def test_sparse_messages_are_scattered_too():
    """With every entry kept it is bsp; each part has its own entries, and replicas stay equal."""
    whole = {"error_feedback": {"top_k": {"density": 1.0, "scope": "bucket"}}}
    config = {"algorithm": rules(whole, "scatter_gather"), "bucket_bytes": BUCKET_BYTES}
    assert_histories_agree(in_process(train, 3, config, STEPS), references.bsp(simulated_workers(3), STEPS))
    some = {"error_feedback": {"chain": [{"top_k": {"density": 0.2}}, {"quantize": {"bits": 4}}]}}
    found = in_process(train, 3, {"algorithm": rules(some, "scatter_gather")}, STEPS)
    for history in found[1:]:
        np.testing.assert_array_equal(history[-1], found[0][-1])


def test_replicas_stay_equal_bit_for_bit():
    first, *others = in_process(train, 3, {"algorithm": "bytegrad"}, 6)
    for history in others:
        np.testing.assert_array_equal(history[-2], first[-2])


def test_biased_rounding_warns_only_where_it_matters():
    exchange, payload = primitives.scatter_gather(), primitives.gradients()
    relaxcomm.Rule(payload=payload, exchange=exchange, compressor=primitives.quantize(bits=8))
    with pytest.warns(relaxcomm.CompositionWarning, match="error_feedback"):
        relaxcomm.Rule(payload=payload, exchange=exchange, compressor=primitives.quantize(bits=3))


def tensor_cuts(names):
    """Where the toy model's tensors begin and end in a bucket that holds these."""
    sizes = {name: p.numel() for name, p in CASES["toy"].model().named_parameters()}
    return np.cumsum([0, *(sizes[name] for name in names)])


def layout(world, config):
    """Names of the parameters in each bucket."""
    model = CASES["toy"].model()
    with world.attach(model, make_optimizer("plain", model), config) as engine:
        CASES["toy"].local_loss(model, 0, world.rank).backward()
        return engine_state(engine)["layout"]


def scaled_signs(cuts):
    """Each tensor's signs times its mean size."""

    def code(x, who=None):
        sent = np.zeros_like(x)
        for start, stop in itertools.pairwise(cuts):
            sent[start:stop] = np.where(x[start:stop] >= 0, 1, -1) * np.abs(x[start:stop]).mean()
        return sent

    return code


@pytest.mark.parametrize("bucket_bytes", [64, BUCKET_BYTES])
def test_ef_signsgd(bucket_bytes):
    """The size of buckets does not change what is sent: scales are those of tensors."""
    names = in_process(layout, 3, {"algorithm": "ef_signsgd", "bucket_bytes": bucket_bytes})[0]
    coders = [Remembering(scaled_signs(tensor_cuts(one))) for one in names]

    def combine(rows, step, bucket):
        return np.mean([coders[bucket](row, worker) for worker, row in enumerate(rows)], axis=0)

    against("ef_signsgd", combine, bucket_bytes=bucket_bytes)


@pytest.mark.parametrize("optimizer", ["plain", "momentum"])
def test_signsgd(optimizer):
    against("signsgd", lambda rows, step, bucket: np.sign(np.sign(rows).sum(axis=0)), optimizer)


def mean_gradients(world, algorithm, steps):
    """The gradients of the same batch, exchanged in `steps` steps: their mean and standard deviation."""
    model = CASES["toy"].model()
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.0), []
    with world.attach(model, optimizer, {"algorithm": algorithm, "bucket_bytes": BUCKET_BYTES}):
        for _ in range(steps):
            CASES["toy"].local_loss(model, 0, world.rank).backward()
            seen.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
            optimizer.step()
            optimizer.zero_grad()
    found = torch.stack(seen)
    return found.mean(0).numpy(), found.std(0).numpy()


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "qsgd", "levels": 3, "block_size": BLOCK},
        pytest.param({"name": "terngrad", "clip": None}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_drawn_gradients_have_the_mean_as_their_expectation(algorithm):
    """Also after the second coding, whose draws are not those of the first."""
    steps = 120
    exact = simulated_workers(3).gradients(0).mean(axis=0)
    found = in_process(mean_gradients, 3, algorithm, steps)
    mean, spread = found[0]
    assert np.median(spread) > 0.1 * np.median(np.abs(exact))
    spread = np.maximum(spread, np.median(spread) / 5)
    away = (mean - exact) / spread * steps**0.5
    assert (np.abs(away) <= 5).all()
    assert np.mean(away**2) < 1.3, "1.1 of draws of their own, 1.6 and 2.5 where both codings draw alike"
    for other, _ in found[1:]:
        np.testing.assert_array_equal(other, mean)


def signs_of_pieces(cuts, numel):
    """`scaled_signs` for the pieces of a bucket, which cut its tensors; told apart by `who`."""
    size = -(-numel // 3)

    def code(x, who):
        start = (who[1] if isinstance(who, tuple) else who) * size
        ends = sorted({0, len(x), *(int(cut) - start for cut in cuts if 0 < cut - start < len(x))})
        return scaled_signs(ends)(x)

    return code


class FrozenAdam:
    """1-bit Adam on one bucket: m from the mean, v frozen after some steps."""

    def __init__(self, warmup, code):
        self.warmup, self.first, self.second = warmup, 0.0, 0.0
        self.worker, self.server = Remembering(code), Remembering(code)

    def __call__(self, rows, step):
        momenta = 0.9 * self.first + 0.1 * rows
        if step < self.warmup:
            self.first = momenta.mean(axis=0)
            self.second = 0.999 * self.second + 0.001 * rows.mean(axis=0) ** 2
        else:
            self.first = references.scattered(momenta, self.worker, self.server)
        learnt = min(step + 1, self.warmup)
        size = np.sqrt(self.second / (1 - 0.999**learnt)) + 1e-3
        return self.first / (1 - 0.9 ** (step + 1)) / size


@pytest.mark.parametrize("bits", [1, 8])
def test_qadam(bits):
    algorithm = {"name": "qadam", "warmup_steps": 10, "bits": bits, "eps": 1e-3}
    names = in_process(layout, 3, {"algorithm": algorithm, "bucket_bytes": BUCKET_BYTES})[0]
    coders = []
    for one in names:
        cuts = tensor_cuts(one)
        code = signs_of_pieces(cuts, cuts[-1]) if bits == 1 else whole_levels
        coders.append(FrozenAdam(10, code))
    against(algorithm, lambda rows, step, bucket: coders[bucket](rows, step), "plain")


def test_qadam_wants_an_optimizer_without_momentum():
    for optimizer in ("momentum", "adamw"):
        with pytest.raises(relaxcomm.CompositionError, match="momentum=0"):
            in_process(train, 3, {"algorithm": "qadam"}, 1, optimizer)


class OwnSteps(torch.optim.Adagrad):
    """Of a user, who knows what it does."""


@pytest.mark.parametrize("algorithm", ["qadam", "dgc"])
def test_steps_that_are_not_those_of_sgd_are_refused(algorithm):
    model = torch.nn.Linear(2, 1)
    others = (getattr(torch.optim, name) for name in ("Adagrad", "RMSprop", "Rprop", "Adafactor", "ASGD"))
    for made in others:
        with pytest.raises(relaxcomm.CompositionError, match=rf"steps of {made.__name__}; .*momentum=0"):
            relaxcomm.attach(model, made(model.parameters()), algorithm)
    for made in (torch.optim.SGD, OwnSteps):
        relaxcomm.attach(model, made(model.parameters(), lr=0.1), algorithm).close()


@pytest.mark.parametrize("bucket_bytes", [64, 1 << 20])
def test_ef21(bucket_bytes):
    """The largest entries of the whole model; estimates of each worker and their mean."""
    config = {"algorithm": {"name": "ef21", "density": 0.1}, "bucket_bytes": bucket_bytes}
    places = in_process(bucket_places, 3, config)[0]
    estimates = np.zeros((3, sum(map(len, places))))

    def combine(rows, step, bucket):
        for row, estimate in zip(rows, estimates, strict=True):
            chosen = np.argsort(-np.abs(row - estimate), kind="stable")[: int(0.1 * len(row))]
            estimate[chosen] = row[chosen]
        return estimates.mean(axis=0)

    expected = references.coded_sgd(simulated_workers(3), STEPS, combine, places)
    assert_histories_agree(in_process(train, 3, config, STEPS), expected)


def test_ef21_reaches_what_rests():
    exact = simulated_workers(3).gradients(0).mean(axis=0)
    algorithm = rules({"ef21": {"quantize": {"bits": 8, "block_size": BLOCK}}}, "all_gather")
    first, later = (in_process(mean_gradients, 3, algorithm, steps)[0][0] for steps in (2, 200))
    assert np.abs(later - exact).max() < 0.02 * np.abs(first - exact).max() + 1e-12


def test_ef21_needs_every_message():
    compressor = primitives.ef21(compressor=primitives.top_k(density=0.1))
    for exchange in (primitives.scatter_gather(), primitives.averaging_server()):
        with pytest.raises(relaxcomm.CompositionError, match="all_gather"):
            relaxcomm.Rule(payload=primitives.gradients(), compressor=compressor, exchange=exchange)
    with pytest.raises(relaxcomm.CompositionError, match="twice"):
        primitives.ef21(compressor=primitives.error_feedback(compressor=primitives.sign()))


def test_directions_are_for_gradients_and_momentum():
    everyone, adam = primitives.all_reduce(), primitives.frozen_adam(warmup_steps=5)
    with pytest.raises(relaxcomm.CompositionError, match="gradients"):
        relaxcomm.Rule(payload=primitives.deltas(), exchange=everyone, outer=primitives.signs())
    with pytest.raises(relaxcomm.CompositionError, match="momentum"):
        relaxcomm.Rule(payload=primitives.gradients(), exchange=everyone, outer=adam)
