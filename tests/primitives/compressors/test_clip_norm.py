"""The bound on what a worker sends, against NumPy, and who holds it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import relaxcomm
from relaxcomm import CompositionError, Rule, round_trip
from relaxcomm.checks.compressor_trials import drawn
from relaxcomm.checks.exchange_trials import exchanged
from relaxcomm.plugin import frozen
from relaxcomm.primitives import (
    all_gather,
    all_reduce,
    chain,
    clip_norm,
    deltas,
    error_feedback,
    every,
    gradients,
    norm_test,
    parameters,
    quantize,
    random_k,
)


@pytest.mark.parametrize("max_norm", [0.5, 20.0, 1e4])
@pytest.mark.parametrize("exchange", [all_gather(), all_reduce()])
def test_the_mean_of_clipped_tensors(exchange, max_norm):
    rows = np.stack([drawn(rank).double().numpy() * (rank + 1) for rank in range(3)])
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    expected = (rows * np.minimum(1, max_norm / norms)).mean(0)
    found = exchanged(exchange, 3, clip_norm(max_norm=max_norm), put_in=lambda rank: drawn(rank) * (rank + 1))
    for one in found:
        np.testing.assert_allclose(one.result.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_each_message_is_clipped_and_not_their_sum():
    """Where values are coded further, too: one worker's outlier takes nothing from the others."""
    coder = chain(compressors=(clip_norm(max_norm=1.0), random_k(density=0.5, scaled=True)))
    (alone,) = round_trip(coder, [torch.ones(64)])
    grown = exchanged(all_reduce(), 3, coder, put_in=lambda rank: torch.ones(64) * 1e6**rank)
    torch.testing.assert_close(grown[0].result, alone)
    gathered = exchanged(all_gather(), 3, coder, put_in=lambda rank: torch.ones(64) * (1.0 - 2 * (rank == 2)))
    torch.testing.assert_close(gathered[0].result, alone / 3)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_squares_beyond_the_range_of_the_type(size):
    tensor = torch.tensor([3.0, 4.0]) * size
    (arrived,) = round_trip(clip_norm(max_norm=1.0), [tensor])
    expected = tensor if size < 1 else torch.tensor([0.6, 0.8])
    torch.testing.assert_close(arrived, expected)


def test_half_precision_is_measured_in_more():
    tensor = torch.full((1000,), 60000.0, dtype=torch.float16)
    (arrived,) = round_trip(clip_norm(max_norm=1.0), [tensor])
    assert float(arrived.double().norm()) == pytest.approx(1.0, rel=1e-2)


def test_receivers_hold_the_bound_themselves():
    """A sender that does not clip moves the mean no more than one that does."""

    @frozen
    class unclipped(type(clip_norm(max_norm=1.0))):
        facts = replace(clip_norm(max_norm=1.0).facts)

        def encode_decode(self, cx, tensor, state, *, keep_sent):
            coding = super().encode_decode(cx, tensor, state, keep_sent=keep_sent)
            message = next(coding)
            parts = yield replace(message, tensor=tensor.clone()) if cx.membership.rank == 0 else message
            try:
                coding.send(parts)
            except StopIteration as stop:
                return stop.value

    def put_in(rank):
        return torch.full((600,), 1e6) if rank == 0 else torch.zeros(600)

    found = exchanged(all_gather(), 4, unclipped(max_norm=1.0), put_in=put_in)
    assert float(found[1].result.norm()) == pytest.approx(0.25, rel=1e-4)
    found = exchanged(all_reduce(), 4, unclipped(max_norm=1.0), put_in=put_in)
    assert float(found[1].result.norm()) <= 1.0 + 1e-4


@pytest.mark.parametrize("scope", ["model", "bucket"])
def test_over_the_model_or_a_bucket(scope):
    """Two parameters in two buckets, unless the whole model is looked at."""

    def train(group):
        model = torch.nn.ModuleList([torch.nn.Linear(300, 1, bias=False) for _ in range(2)])
        rule = Rule(
            payload=gradients(), compressor=clip_norm(max_norm=1.0, scope=scope), exchange=all_reduce()
        )
        config = {"algorithm": relaxcomm.Algorithm((rule,), name="clipped"), "bucket_bytes": 1200}
        with relaxcomm.attach(model, None, config, process_group=group):
            sum(one(torch.ones(1, 300)) for one in model).sum().backward()
            return [one.weight.grad.norm().item() for one in model]

    expected = [1.0, 1.0] if scope == "bucket" else [math.sqrt(0.5)] * 2
    for norms in relaxcomm.simulate(train, 2):
        assert norms == pytest.approx(expected, rel=1e-4)


def test_error_feedback_sends_what_is_cut_later():
    arrived = round_trip(
        error_feedback(compressor=clip_norm(max_norm=1.0)), [torch.tensor([2.5])] + [torch.zeros(1)] * 4
    )
    assert [one.item() for one in arrived] == pytest.approx([1.0, 1.0, 0.5, 0.0, 0.0])


def test_it_goes_in_front_of_what_shortens_numbers():
    compressor = chain(compressors=(clip_norm(max_norm=1.0), quantize(bits=8)))
    (arrived,) = round_trip(compressor, [torch.randn(1000) * 100])
    assert float(arrived.norm()) <= 1.0 + 1e-4
    assert compressor.message_bytes(1000, 4) < 1100


def test_points_are_refused():
    with pytest.raises(
        CompositionError, match="points, which would be drawn to zero; use the payload deltas"
    ):
        Rule(payload=parameters(), compressor=clip_norm(max_norm=1.0), exchange=all_reduce())


def test_a_controller_that_reads_sizes_refuses_it():
    rule = Rule(payload=gradients(), compressor=clip_norm(max_norm=1.0), exchange=all_reduce())
    with pytest.raises(CompositionError, match="shortens"):
        relaxcomm.Algorithm((rule,), name="x", controllers=(norm_test(rule=0, tolerance=0.5),))


def test_no_warning_that_a_part_is_lost():
    """The bound is meant; warnings are errors here."""
    Rule(trigger=every(steps=4), payload=deltas(), compressor=clip_norm(max_norm=1.0), exchange=all_reduce())
