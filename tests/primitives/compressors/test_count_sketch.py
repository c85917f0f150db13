"""The sketch: norms and inner products survive it, and sketches of workers add up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import relaxcomm
from relaxcomm import Algorithm, Rule
from relaxcomm.network.transport import Membership
from relaxcomm.primitives import (
    all_gather,
    all_reduce,
    count_sketch,
    gradients,
    identity,
    norm_test,
    observe,
    parameters,
    top_k,
)
from relaxcomm.roles import ExchangedBucket
from tests.primitives.compressors.test_sparsifiers import bucket_of, context, encode_decode


def measured(coder, tensor, steps=range(1)):
    """`<x, C(x)> / ||x||^2` in each step."""
    return torch.tensor(
        [float(tensor @ encode_decode(coder, tensor, step=step)[1] / tensor.square().sum()) for step in steps]
    )


def test_norms_are_read_to_the_root_of_the_size():
    tensor = torch.randn(50_000, generator=torch.Generator().manual_seed(0))
    found = measured(count_sketch(size=512), tensor, range(60))
    assert abs(float(found.mean()) - 1) < 4 * (2 / 512) ** 0.5 / 60**0.5
    assert 0.7 < float(found.std()) / (2 / 512) ** 0.5 < 1.3


def test_a_few_large_entries_are_read_as_well():
    tensor = torch.zeros(300_000)
    tensor[::30_000] = 7.0  # all at multiples of a round number, over two chunks
    found = measured(count_sketch(size=256), tensor, range(40))
    assert abs(float(found.mean()) - 1) < 0.05


def test_the_sketch_of_a_mean_is_the_mean_of_the_sketches():
    draw = torch.Generator().manual_seed(1)
    one, other = (torch.randn(10_000, generator=draw, dtype=torch.float64) for _ in range(2))
    coder = count_sketch(size=100)
    together = encode_decode(coder, (one + other) / 2)[0].tensor
    apart = (encode_decode(coder, one)[0].tensor + encode_decode(coder, other)[0].tensor) / 2
    torch.testing.assert_close(apart, together)
    assert not torch.allclose(
        encode_decode(coder, one, step=1)[0].tensor, encode_decode(coder, one)[0].tensor
    )


def test_buckets_draw_differently():
    tensor = torch.ones(1000)
    coder = count_sketch(size=10)
    assert not torch.equal(
        encode_decode(coder, tensor, {"unit": torch.tensor(0)})[0].tensor,
        encode_decode(coder, tensor, {"unit": torch.tensor(1)})[0].tensor,
    )
    assert dict(coder.init(bucket_of(tensor))) == {"unit": torch.tensor(0)}


@pytest.mark.parametrize("numel", [0, 1, 99, 100])
def test_what_is_no_longer_than_the_sketch_is_sent_as_it_is(numel):
    tensor = torch.randn(numel)
    message, result, _ = encode_decode(count_sketch(size=100), tensor)
    assert torch.equal(message.tensor, tensor)
    assert torch.equal(result, tensor)


def test_half_precision_is_added_up_in_single():
    tensor = torch.full((100_000,), 60_000.0, dtype=torch.float16)
    message, _, _ = encode_decode(count_sketch(size=10), tensor)
    assert message.tensor.dtype == torch.float32
    assert bool(message.tensor.isfinite().all())


def test_the_norm_test_reads_the_same_from_sketches():
    """Of four workers whose gradients differ by ten times their mean's size."""
    draw = torch.Generator().manual_seed(2)
    shared = torch.randn(40_000, generator=draw)
    mine = [shared + 10 * torch.randn(40_000, generator=draw) for _ in range(4)]
    test = norm_test(rule=0, tolerance=0.8)

    def needed(compressor):
        sent = [encode_decode(compressor, one)[0].tensor for one in mine]
        coding = compressor.encode_decode(
            context(), mine[0], dict(compressor.init(bucket_of(shared))), keep_sent=False
        )
        message = next(coding)
        with pytest.raises(StopIteration) as stop:
            coding.send([(1.0, replace(message, tensor=torch.stack(sent).mean(0)))])
        result, _ = stop.value.value
        cx = replace(context(), membership=Membership(0, 4), values={"batch_size": 100})
        seen = [test.observe(cx, ExchangedBucket(0, one, result, None, 100)) for one in mine]
        return test.decide(cx, torch.stack(seen).sum(0))["batch_size"]

    exact = needed(identity())
    assert exact > 120
    assert needed(count_sketch(size=4096)) == pytest.approx(exact, rel=0.1)


def test_the_norm_test_refuses_what_shortens_gradients():
    with pytest.warns(relaxcomm.CompositionWarning, match="loses a part"):
        testing = Rule(
            payload=gradients(), exchange=all_gather(), compressor=top_k(density=0.1), outer=observe()
        )
    averaging = Rule(payload=parameters(), exchange=all_reduce())
    with pytest.raises(relaxcomm.CompositionError, match="unbiased, such as identity"):
        Algorithm((averaging, testing), controllers=(norm_test(rule=1, tolerance=0.8),))
