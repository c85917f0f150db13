"""Sparsifiers and error feedback: what is sent, what is kept, and awkward tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings, strategies as st

import relaxcomm
from relaxcomm import primitives
from relaxcomm.config.grammar import parse_algorithm
from relaxcomm.network.transport import Membership
from relaxcomm.primitives import (
    adaptive_top_k,
    dgc,
    error_feedback,
    gaussian_k,
    momentum_correction,
    piecewise,
    random_k,
    top_k,
)
from relaxcomm.primitives.compressors.threshold_search import Magnitudes
from relaxcomm.roles import Context
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from relaxcomm.tensors.messages import Sparse
from tests.kernels.comparing import counter

CHOOSING = [top_k(density=0.01), gaussian_k(density=0.01), dgc(density=0.01)]
ALL = [*CHOOSING, random_k(density=0.01)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def context(step=0):
    return Context(step=step, start=0, membership=Membership(0, 2), learning_rate=lambda bucket: 0.1)


def bucket_of(tensor):
    return Bucket(0, [Item("tensor", tensor)])


def encode_decode(compressor, tensor, state=None, step=0):
    """The message, what it decodes to alone, and the declared own part as a dense tensor."""
    state = dict(compressor.init(bucket_of(tensor))) if state is None else state
    coding = compressor.encode_decode(context(step), tensor.clone(), state, keep_sent=True)
    message = next(coding)
    with pytest.raises(StopIteration) as stop:
        coding.send([(1.0, message)])
    result, own = stop.value.value
    if isinstance(own, Sparse):
        dense = torch.zeros_like(result)
        own.add_to(dense, 1.0)
        own = dense
    return message, result, own


@pytest.mark.parametrize("compressor", ALL, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("numel", [0, 1, 2, 63, 64, 65, 1000, 300_001])
def test_entries_are_sent_as_they_are_or_not_at_all(compressor, dtype, numel):
    tensor = torch.randn(numel, generator=torch.Generator().manual_seed(1)).to(dtype)
    message, result, own = encode_decode(compressor, tensor)
    torch.testing.assert_close(result, own.to(result.dtype), rtol=0, atol=0)
    sent = result != 0
    torch.testing.assert_close(result[sent], tensor[sent].to(result.dtype), rtol=0, atol=0)
    packed = message.pack()
    assert packed.dtype == torch.uint8
    assert packed.numel() == compressor.message_bytes(numel, tensor.element_size())
    if numel:
        assert sent.any()
    if isinstance(message, Sparse):
        again = message.unpack(torch.cat([torch.zeros(3, dtype=torch.uint8), packed])[3:])
        for one, other in ((message.values, again.values), (message.indices, again.indices)):
            assert torch.equal(one, other)
        assert int(message.count) == int(again.count) <= message.values.numel()


@pytest.mark.parametrize("numel", [1, 7, 100, 5000])
@pytest.mark.parametrize("density", [0.001, 0.03, 0.5, 1.0])
def test_top_k_is_exact(numel, density):
    tensor = torch.randn(numel, generator=torch.Generator().manual_seed(numel))
    _, result, _ = encode_decode(top_k(density=density), tensor)
    k = max(int(density * numel), 1)
    order = np.argsort(-np.abs(tensor.numpy()))[:k]
    expected = np.zeros(numel, dtype=np.float32)
    expected[order] = tensor.numpy()[order]
    np.testing.assert_array_equal(result.numpy(), expected)
    lost = float(((tensor - result) ** 2).sum() / (tensor**2).sum())
    assert lost <= top_k(density=density).contraction(numel) + 1e-6


def test_gaussian_k_finds_what_the_paper_code_finds():
    """Counts at each threshold for the four distributions that the definition was tried on."""
    draw, size = np.random.default_rng(0), 10**6
    expected = {
        "normal": (draw.normal(size=size), [995]),
        "laplace": (draw.laplace(size=size), [9500, 915]),
        "t4": (draw.standard_t(4, size=size), [9624, 2251, 436]),
        "t2": (draw.standard_t(2, size=size), [5451, 2401, 1058]),
    }
    for name, (values, counts) in expected.items():
        tensor = torch.from_numpy(values)
        found = Magnitudes(tensor)
        tried = gaussian_k(density=0.001).search(counter(tensor), found.moments(), 0.001, size)
        assert [count for _, count in tried] == counts, name
        indices = found.above(tried[-1][0]).indices.numpy()
        assert len(indices) == counts[-1]
        sizes = np.abs(values)
        assert sizes[indices].min() > np.delete(sizes, indices).max()


def starving(numel=17_000):
    """Entries of which the three thresholds find 301, 58 and none, as gradients of small models have them."""
    tensor = 0.241 * torch.ones(numel, dtype=torch.float64)
    tensor[:243], tensor[243:301] = 1.2, torch.linspace(1.9, 2.1, 58)
    places = torch.randperm(numel, generator=torch.Generator().manual_seed(0))
    return tensor.mul_(torch.tensor([1.0, -1.0]).repeat(numel // 2))[places]


def test_gaussian_k_sends_the_largest_where_the_last_threshold_finds_nothing():
    tensor, density, k = starving(), 0.001, 17
    moments = Magnitudes(tensor).moments()
    tried = gaussian_k(density=density).search(counter(tensor), moments, density, tensor.numel())
    assert [count for _, count in tried] == [301, 58, 0]
    _, sent, _ = encode_decode(gaussian_k(density=density), tensor)
    _, exact, _ = encode_decode(top_k(density=density), tensor)
    assert int((sent != 0).sum()) == k
    assert torch.equal(sent, exact)
    message, published, _ = encode_decode(gaussian_k(density=density, fallback=None), tensor)
    assert int(message.count) == 0
    assert not published.any()


def test_gaussian_k_keeps_a_share_of_every_tensor():
    """What `contraction` declares, also where thresholds find too little; published, it declares none."""
    assert gaussian_k(density=0.001, fallback=None).contraction(17_000) is None
    for tensor in (starving(), torch.ones(300), torch.randn(300) ** 5, torch.zeros(300)):
        _, sent, _ = encode_decode(gaussian_k(density=0.05), tensor)
        bound = gaussian_k(density=0.05).contraction(tensor.numel())
        assert float((sent - tensor).square().sum()) <= bound * float(tensor.square().sum()) * (1 + 1e-6)


@pytest.mark.parametrize("compressor", CHOOSING, ids=repr)
@pytest.mark.parametrize(
    ("dtype", "powers"),
    [(torch.float32, (-100, 57, 120)), (torch.bfloat16, (-100, 120)), (torch.float64, (-1000, 1015))],
    ids=str,
)
def test_what_is_chosen_does_not_depend_on_the_unit(compressor, dtype, powers):
    """Squares of these overflow, or vanish; powers of two change no other bit."""
    tensor = torch.randn(20_000, generator=torch.Generator().manual_seed(2)).to(dtype)
    expected = encode_decode(compressor, tensor)[1] != 0
    assert expected.any()
    for power in powers:
        scaled = torch.ldexp(tensor, torch.tensor(power)).to(dtype)
        assert torch.isfinite(scaled).all()
        found = encode_decode(compressor, scaled)[1] != 0
        assert torch.equal(found, expected), power


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_gains_do_not_depend_on_the_unit(unit):
    tensor = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    gains = [
        next(
            adaptive_top_k().encode_decode(
                context(), one, dict(adaptive_top_k().init(bucket_of(one))), keep_sent=False
            )
        )
        .messages[1]
        .tensor
        for one in (tensor, unit * tensor)
    ]
    torch.testing.assert_close(gains[1], gains[0])


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=400),
    density=st.sampled_from([0.01, 0.1, 0.4, 0.75]),
)
@example(values=[0.0, -1.0], density=0.01)  # the threshold is negative
def test_gaussian_k_agrees_with_a_plain_search(values, density):
    tensor = torch.tensor(values, dtype=torch.float64)
    k = max(int(density * len(values)), 1)
    u = np.array(values, dtype=np.float64)
    mean, std = u.mean(), u.std(ddof=1) if len(u) > 1 else 0.0
    from statistics import NormalDist

    threshold = mean + std * NormalDist().inv_cdf(1 - density / 2)
    if abs(np.abs(u) - threshold).min() < 1e-6:
        return  # rounding decides
    for _ in range(3):
        mask = np.abs(u) > threshold
        if mask.sum() < 2 * k / 3:
            threshold *= 0.5
        elif mask.sum() > 4 * k / 3:
            threshold *= 1.5
        else:
            break
        if abs(np.abs(u) - threshold).min() < 1e-6:
            return
    room = min(len(u), -(-4 * k // 3))
    sent, published = (
        gaussian_k(density=density, fallback=fallback).select(Magnitudes(tensor), density, room).tolist()
        for fallback in ("top_k", None)
    )
    found = np.flatnonzero(mask & (u != 0))  # an entry of size 0 need not be sent
    if len(found) <= room:
        assert published == found.tolist()
    else:  # the largest of them
        assert len(published) == room
        assert set(published) <= set(found.tolist())
        assert np.abs(u[published]).min() >= np.sort(np.abs(u))[-room]
    if mask.sum() >= 2 * k / 3:
        assert sorted(sent) == sorted(published)
    else:
        assert len(sent) == min(k, np.count_nonzero(u))
    if sent:
        assert np.abs(u[sent]).min() >= np.sort(np.abs(u))[-len(sent)]


@pytest.mark.parametrize(
    ("mean", "std"), [(0.0, 1.0), (1000.0, 1e-3), (-5.0, 1e-5), (3.0, 0.0), (1e-9, 1e-9)]
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_moments_survive_a_mean_that_is_far_from_zero(mean, std, dtype):
    tensor = torch.from_numpy(np.random.default_rng(3).normal(mean, std, 600_001)).to(dtype)
    values = tensor.double().numpy()
    found = Magnitudes(tensor).moments()
    np.testing.assert_allclose(
        found, (values.mean(), values.std(ddof=1)), rtol=1e-3, atol=1e-3 * values.std() + 1e-12
    )


@pytest.mark.parametrize("compressor", ALL, ids=repr)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_never_hidden(compressor, bad):
    tensor = torch.randn(500)
    tensor[123] = bad
    _, result, _ = encode_decode(compressor, tensor)
    assert not torch.isfinite(result).all()


@pytest.mark.parametrize("compressor", ALL, ids=repr)
@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(1000),
        torch.full((1000,), 3.0),
        torch.full((1000,), -1e-42),
        1e-9 * torch.randn(1000),
        torch.cat([torch.randn(999), torch.tensor([1000.0])]),
        1000 + 1e-3 * torch.randn(1000),
    ],
    ids=["zeros", "constant", "denormal", "tiny", "outlier", "offset"],
)
def test_nothing_is_lost_on_awkward_tensors(compressor, tensor):
    """With error feedback, what was sent and the residual are what came in; and all gets through in time."""
    coder = error_feedback(compressor=compressor)
    state = dict(coder.init(bucket_of(tensor)))
    sent = torch.zeros(1000, dtype=torch.float64)
    for step in range(5):
        _, _, own = encode_decode(coder, tensor, state, step)
        sent += own.double()
    np.testing.assert_allclose((sent + state["residual"].double()).numpy(), 5 * tensor.double(), rtol=1e-5)


def test_the_outlier_is_the_first_to_be_sent():
    tensor = torch.randn(1000)
    tensor[77] = 1000.0
    for compressor in CHOOSING:
        assert encode_decode(compressor, tensor)[1][77] == 1000.0, compressor


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_error_feedback_follows_its_definition(decay):
    coder = error_feedback(compressor=top_k(density=0.1), decay=decay)
    draw = np.random.default_rng(5)
    state, residual = dict(coder.init(bucket_of(torch.zeros(50)))), np.zeros(50)
    for step in range(9):
        x = draw.normal(size=50).astype(np.float32)
        _, result, _ = encode_decode(coder, torch.from_numpy(x), state, step)
        u = x + decay * residual
        expected = np.where(np.argsort(np.argsort(-np.abs(u))) < 5, u, 0)
        residual = u - expected
        np.testing.assert_allclose(result.numpy(), expected, atol=1e-5)
        np.testing.assert_allclose(state["residual"].numpy(), residual, atol=1e-5)


def test_random_k_draws_the_same_everywhere_and_anew_each_step():
    coder = random_k(density=0.1)
    one, other = encode_decode(coder, torch.ones(100))[1], encode_decode(coder, torch.arange(1.0, 101))[1]
    assert torch.equal(one != 0, other != 0)
    assert not torch.equal(one != 0, encode_decode(coder, torch.ones(100), step=1)[1] != 0)
    assert int((one != 0).sum()) == 10


def test_random_k_draws_differently_for_equal_buckets_and_other_seeds():
    def drawn(index, seed):
        coder = random_k(density=0.1, seed=seed)
        state = dict(coder.init(Bucket(index, [Item("tensor", torch.ones(100))])))
        return tuple(torch.nonzero(encode_decode(coder, torch.ones(100), state)[1]).view(-1).tolist())

    assert len({drawn(index, seed) for index in range(3) for seed in range(3)}) == 9
    assert drawn(2, 1) == drawn(2, 1)


def test_large_finite_entries_are_not_taken_for_infinite():
    tensor = torch.full((100,), 3e38)
    for compressor in ALL:
        assert torch.isfinite(encode_decode(compressor, tensor)[1]).all(), compressor


def test_scaled_random_k_is_unbiased():
    tensor, total = torch.linspace(-2, 3, 60), torch.zeros(60)
    for step in range(4000):
        total += encode_decode(random_k(density=0.25, scaled=True), tensor, step=step)[1]
    error = (total / 4000 - tensor).abs() / (tensor.abs() + 1e-9)
    assert float(error.median()) < 0.05


def test_density_follows_its_schedule_and_the_residual_stays():
    coder = error_feedback(compressor=top_k(density=piecewise(values=(0.5, 0.1), steps=(3,))))
    state = dict(coder.init(bucket_of(torch.zeros(20))))
    counts = [int((encode_decode(coder, torch.ones(20), state, step)[2] != 0).sum()) for step in range(5)]
    assert counts == [10, 10, 10, 2, 2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: top_k(density=0.0),
        lambda: top_k(density=1.5),
        lambda: top_k(density=0.1, scope="tensor"),
        lambda: piecewise(values=(0.1,), steps=(3,)),
        lambda: piecewise(values=(0.1, 0.2, 0.3), steps=(5, 3)),
        lambda: error_feedback(compressor=error_feedback(compressor=top_k(density=0.1))),
        lambda: momentum_correction(compressor=error_feedback(compressor=top_k(density=0.1))),
    ],
)
def test_what_makes_no_sense_is_refused(make):
    with pytest.raises((relaxcomm.ConfigError, relaxcomm.CompositionError)):
        make()


@pytest.mark.parametrize("value", [0.0, -0.1, 1.5, float("nan"), float("inf")])
def test_every_density_of_a_schedule_is_checked(value):
    for make in (top_k, gaussian_k, dgc, random_k):
        with pytest.raises(relaxcomm.ConfigError, match=r"\(0, 1\]"):
            make(density=piecewise(values=(0.5, value), steps=(3,)))
    written = {"name": "topk_sgd", "density": {"piecewise": {"values": [0.5, value], "steps": [3]}}}
    with pytest.raises(relaxcomm.ConfigError, match=r"\(0, 1\]"):
        parse_algorithm(written)


def test_sparse_messages_are_refused_by_all_reduce_and_bias_is_warned_of():
    with pytest.raises(relaxcomm.CompositionError, match="sparse"):
        relaxcomm.Rule(
            payload=primitives.gradients(),
            exchange=primitives.all_reduce(),
            compressor=error_feedback(compressor=top_k(density=0.1)),
        )
    with pytest.warns(relaxcomm.CompositionWarning, match="error_feedback"):
        relaxcomm.Rule(
            payload=primitives.gradients(),
            exchange=primitives.all_gather(),
            compressor=top_k(density=0.1),
        )


@pytest.mark.parametrize("around", [error_feedback, momentum_correction])
def test_two_messages_under_way_would_carry_the_same_rest(around):
    late = {"exchange": primitives.all_gather(), "delay": 1}
    compressor = around(compressor=top_k(density=0.1))
    with pytest.raises(relaxcomm.CompositionError, match="the same rest"):
        relaxcomm.Rule(payload=primitives.gradients(), compressor=compressor, **late)
    relaxcomm.Rule(payload=primitives.deltas(), compressor=compressor, **late)
    unbiased = random_k(density=0.1, scaled=True)
    relaxcomm.Rule(payload=primitives.gradients(), compressor=unbiased, **late)


def test_a_server_reads_no_messages_that_depend_on_the_clock():
    def rule(compressor):
        compressor = error_feedback(compressor=compressor)
        return relaxcomm.Rule(
            payload=primitives.deltas(), exchange=primitives.server(staleness=1), compressor=compressor
        )

    rule(top_k(density=0.1))
    for make in (top_k, gaussian_k, dgc):
        with pytest.raises(relaxcomm.CompositionError, match="depends on the clock"):
            rule(make(density=piecewise(values=(0.5, 0.1), steps=(3,))))


def test_duplicate_entries_add_up():
    message = Sparse(
        torch.tensor([1.0, 2.0, 4.0, 99.0]),
        torch.tensor([3, 3, 0, 1], dtype=torch.int32),
        torch.tensor([3], dtype=torch.int32),
    )
    total = torch.zeros(5)
    message.add_to(total, 0.5)
    assert total.tolist() == [2.0, 0.0, 0.0, 1.5, 0.0]
