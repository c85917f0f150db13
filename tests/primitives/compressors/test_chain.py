"""Chains of compressors: each codes the values of the one before it."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import relaxcomm
from relaxcomm import primitives
from relaxcomm.checks.round_trip import context
from relaxcomm.config.grammar import parse_primitive
from relaxcomm.kernels.dispatch import implementation
from relaxcomm.plugin import frozen
from relaxcomm.primitives import (
    adaptive_top_k,
    cast,
    chain,
    chunk_top_k,
    clip_norm,
    dgc,
    error_feedback,
    gaussian_k,
    identity,
    random_k,
    top_k,
)
from relaxcomm.primitives.compressors.decode import finish
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from tests.primitives.compressors.test_sparsifiers import bucket_of, encode_decode

HALF = cast("float16")


def exchanged(compressor, tensors):
    """What every rank ends with, over the cheapest exchange that takes the messages."""
    exchange = primitives.all_reduce()
    if not compressor.facts.kinds <= exchange.facts.accepts:
        exchange = primitives.all_gather()

    def rank(group):
        transport, tensor = group.transport(), tensors[group.rank()].clone()
        slots = dict(compressor.init(bucket_of(tensor)))
        running = exchange.run(context(group.rank(), len(tensors)), tensor, compressor, slots)
        received, stage = next(running), 0
        try:
            while True:
                label = relaxcomm.network.operations.Label(0, "0", 0, stage)
                received = running.send(transport.issue(received, label).wait())
                stage += 1
        except StopIteration as stop:
            return stop.value.numpy()

    return relaxcomm.simulate(rank, len(tensors))


def largest(x, k):
    return np.where(np.argsort(np.argsort(-np.abs(x))) < k, x, 0)


def test_values_of_top_k_in_half_precision():
    draw = np.random.default_rng(1)
    inputs = [draw.normal(size=301).astype(np.float32) for _ in range(3)]
    expected = sum(largest(x, 30).astype(np.float16).astype(np.float32) for x in inputs) / 3
    compressor = chain(compressors=(top_k(density=0.1), HALF))
    for found in exchanged(compressor, [torch.from_numpy(x) for x in inputs]):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert compressor.message_bytes(301, 4) == 30 * (2 + 4) + 4
    assert compressor.facts.kinds == {"sparse"}


def test_values_of_a_shared_support_are_summed_in_the_network():
    inputs = [torch.randn(301, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    shared = random_k(density=0.1)
    plain, halved = exchanged(shared, inputs), exchanged(chain(compressors=(shared, HALF)), inputs)
    np.testing.assert_allclose(halved[0], plain[0], rtol=2**-8, atol=2**-10)
    assert not np.array_equal(halved[0], plain[0])
    assert chain(compressors=(shared, HALF)).facts.kinds == {"shared_support"}
    assert chain(compressors=(shared, HALF)).message_bytes(301, 4) == 30 * 2


def test_a_choice_among_what_was_chosen():
    """Of three: what random_k draws, the largest half of that, in half precision."""
    inputs = [torch.randn(200, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    drawn = [encode_decode(random_k(density=0.2), x)[1].numpy() for x in inputs]
    expected = sum(largest(x, 20).astype(np.float16).astype(np.float32) for x in drawn) / 3
    compressor = chain(compressors=(random_k(density=0.2), top_k(density=0.5), HALF))
    for found in exchanged(compressor, inputs):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert compressor.facts.kinds == {"sparse"}


@pytest.mark.parametrize(
    "compressors",
    [
        (top_k(density=0.1), HALF),
        (gaussian_k(density=0.1), HALF),
        (top_k(density=0.4), random_k(density=0.5)),
        (random_k(density=0.4), HALF),
        (random_k(density=0.4), top_k(density=0.5), HALF),
        (identity(), top_k(density=0.1)),
        (HALF, top_k(density=0.1)),
    ],
    ids=repr,
)
def test_error_feedback_corrects_what_all_of_them_lose(compressors):
    coder = error_feedback(compressor=chain(compressors=compressors))
    draw, state = torch.Generator().manual_seed(0), dict(coder.init(bucket_of(torch.zeros(77))))
    came, sent = torch.zeros(77, dtype=torch.float64), torch.zeros(77, dtype=torch.float64)
    for step in range(7):
        x = torch.randn(77, generator=draw)
        _, result, own = encode_decode(coder, x, state, step)
        torch.testing.assert_close(result, own, rtol=0, atol=0)
        came, sent = came + x.double(), sent + own.double()
    np.testing.assert_allclose((sent + state["residual"].double()).numpy(), came, atol=1e-5)
    assert float(sent.abs().sum()) > 0


def test_what_is_not_finite_comes_through():
    tensor = torch.randn(500)
    tensor[3] = float("nan")
    for first in (top_k(density=0.01), random_k(density=0.01)):
        assert not torch.isfinite(encode_decode(chain(compressors=(first, HALF)), tensor)[1]).all()


@pytest.mark.parametrize("coded", [nullcontext, partial(implementation, "torch")])  # as on a GPU
@pytest.mark.parametrize("place", [0, 599])
def test_what_is_not_finite_is_not_hidden_among_values_that_are_not_used(coded, place):
    firsts = dgc(density=0.1), gaussian_k(density=0.1), chunk_top_k(num_kept=7, chunk_size=100)
    for first, step in itertools.product(firsts, range(4)):
        tensor = torch.randn(600)
        tensor[place] = float("nan")
        coder = chain(compressors=(first, random_k(density=0.1)))
        with coded():
            _, result, sent = encode_decode(coder, tensor, None, step)
        assert not result.isfinite().all()
        torch.testing.assert_close(result, sent, equal_nan=True)


@frozen
class counting(identity):
    """Counts in place what it codes, and keeps the last."""

    facts = replace(identity.facts, linear=False, slots={"coded": "equal", "last": "share"})

    def init(self, bucket):
        return {"coded": torch.zeros(()), "last": bucket.zeros()}

    def encode_decode(self, cx, tensor, state, *, keep_sent):
        state["coded"].add_(1)
        state["last"] = tensor.clone()
        return identity.encode_decode(self, cx, tensor, state, keep_sent=keep_sent)


@pytest.mark.parametrize(
    ("compressors", "index"),
    [
        ((top_k(density=0.1), counting()), 1),
        ((clip_norm(max_norm=0.1, scope="bucket"), counting()), 1),
        ((counting(), HALF), 0),
        ((top_k(density=0.3), random_k(density=0.5), counting()), "1.1"),
    ],
    ids=repr,
)
def test_what_only_decodes_leaves_no_trace_in_slots(compressors, index):
    coder, draw = chain(compressors=compressors), torch.Generator().manual_seed(0)
    state = dict(coder.init(bucket_of(torch.zeros(60))))
    for step in range(1, 4):
        encode_decode(coder, torch.randn(60, generator=draw), state, step)
        assert state[f"{index}.coded"] == step
        assert state[f"{index}.last"].count_nonzero() == state[f"{index}.last"].numel() > 0


def test_an_adaptive_one_counts_its_own_messages():
    coder = chain(compressors=(top_k(density=0.5), adaptive_top_k(gain=0.5, most=0.4, window=3)))
    state = dict(coder.init(bucket_of(torch.zeros(60))))
    counts = []
    for step in range(4):
        encode_decode(coder, torch.randn(60, generator=torch.Generator().manual_seed(step)), state, step)
        counts.append(int(state["1.count"]))
    assert counts == [1, 2, 0, 1]


def test_behind_a_cast_one_of_tensors_codes_each_of_them():
    tensors = torch.full((3,), 64.0), torch.tensor([0.5, -0.5])
    bucket = Bucket(0, [Item(str(index), tensor) for index, tensor in enumerate(tensors)])
    coder, flat = chain(compressors=(HALF, primitives.sign())), torch.cat(tensors)
    coding = coder.encode_decode(
        context(layout=bucket.layout), flat.clone(), dict(coder.init(bucket)), keep_sent=False
    )
    result, _ = finish(coding, [(1.0, next(coding))])
    torch.testing.assert_close(result, flat)  # each has entries of one size


def test_facts_follow_from_the_parts():
    assert chain(compressors=(HALF, cast("bfloat16"))).facts.scope == "entry"
    assert chain(compressors=(HALF, top_k(density=0.1))).facts.scope == "model"
    assert chain(compressors=(HALF, top_k(density=0.1, scope="bucket"))).facts.scope == "bucket"
    assert chain(compressors=(random_k(density=0.1, scaled=True), HALF)).facts.unbiased
    assert not chain(compressors=(random_k(density=0.1), HALF)).facts.unbiased


def test_in_yaml():
    written = {"error_feedback": {"chain": [{"top_k": {"density": 0.01}}, {"cast": {"dtype": "float16"}}]}}
    made = parse_primitive("compressor", written)
    assert made == error_feedback(compressor=chain(compressors=(top_k(density=0.01), HALF)))


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (top_k(density=0.1),),
        (error_feedback(compressor=top_k(density=0.1)), HALF),
        (top_k(density=0.1), error_feedback(compressor=HALF)),
        (chain(compressors=(top_k(density=0.5), HALF)), HALF),
    ],
    ids=repr,
)
def test_what_cannot_be_chained_is_refused(parts):
    with pytest.raises((relaxcomm.ConfigError, relaxcomm.CompositionError)):
        chain(compressors=parts)
