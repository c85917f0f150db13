"""One kernel for blocks has the bits of those that look and pack apart, and compiled loops those of torch."""

from __future__ import annotations

import pytest
import torch

from relaxcomm.checks.round_trip import encode_decode, slots
from relaxcomm.kernels.block_quantizer import quantize_blocks, takes_blocks
from relaxcomm.kernels.dispatch import has_numba, implementation
from relaxcomm.kernels.level_packing import pack_levels
from relaxcomm.kernels.levels import levels_between
from relaxcomm.kernels.philox import key_of
from relaxcomm.kernels.segment_scales import segment_scales
from relaxcomm.kernels.segment_statistics import ScaleRule
from relaxcomm.primitives import error_feedback, qsgd, quantize
from relaxcomm.primitives.compressors.weighted_sum import sum_quantized
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from relaxcomm.tensors.segments import Segments
from tests.kernels.comparing import DTYPES, KINDS, both, entries, host_entries, same_bits
from tests.kernels.interpreter import DEVICE

KEYS = pytest.mark.parametrize("key", [None, key_of(2**40 + 5)], ids=["nearest", "drawn"])


def quantized(x, residual, segments, num_codes, key, symmetric):
    """Codes, steps, lows and what is left of the sum, in the one kernel if it takes them."""
    out = None if residual is None else torch.empty_like(residual)
    if takes_blocks(x, segments, num_codes, is_drawn=key is not None):
        found = quantize_blocks(
            *(x, segments, num_codes, key), symmetric=symmetric, residual=residual, decay=0.5, out=out
        )
        return *found, x if out is None else out
    rule = ScaleRule("range", num_codes, symmetric)
    scales = segment_scales(x, segments, rule, residual, 0.5, out)
    subtracts = out is not None
    codes = pack_levels(
        *(out if subtracts else x, scales, segments, num_codes, key),
        dtype=x.dtype,
        subtract=subtracts,
    )
    lows = scales.steps[:0] if scales.lows is None else scales.lows
    return codes, scales.steps, lows, x if out is None else out


def check_same(x, segments, num_codes, key=None, *, symmetric=False, residual=None):
    with implementation("triton"):
        assert takes_blocks(x, segments, num_codes, is_drawn=key is not None)
    found, expected = both(quantized, x, residual, segments, num_codes, key, symmetric)
    assert all(same_bits(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.every_other("block", "symmetric", "key", of=4)
@KEYS
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("block", [1, 7, 1024, 4096])
def test_blocks_of_any_size(block, symmetric, key, kernels):
    num_codes = 255 if symmetric else 256
    for numel in (1, 1025, 9001):
        x = entries(numel)
        check_same(x, Segments(numel, block), num_codes, key, symmetric=symmetric)
        residual = entries(numel, seed=1)
        check_same(x, Segments(numel, block), num_codes, key, symmetric=symmetric, residual=residual)


@pytest.mark.every_other("kind", "dtype", "key", of=4)
@KEYS
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_entries(kind, dtype, key, kernels):
    x = entries(1025, dtype, kind)
    for num_codes, symmetric in ((256, False), (255, True), (32, False)):
        for residual in (None, entries(1025, seed=1)):
            check_same(x, Segments(1025, 64), num_codes, key, symmetric=symmetric, residual=residual)


def test_others_are_left_to_kernels_that_look_and_pack_apart(kernels):
    x = entries(9000)
    with implementation("triton"):
        assert not takes_blocks(x, Segments(9000, 1024), 16, is_drawn=False)  # two codes a byte
        assert not takes_blocks(x, Segments(9000, 5000), 256, is_drawn=False)
        assert not takes_blocks(x, Segments(9000, None, (4000, 5000)), 256, is_drawn=False)
        assert not takes_blocks(x.double(), Segments(9000, 1024), 256, is_drawn=False)
    with implementation("torch"):
        assert not takes_blocks(x, Segments(9000, 1024), 256, is_drawn=False)


CPU = pytest.mark.skipif(not has_numba(), reason="Numba is not installed")


def on_a_cpu(coder, kind, numel, weights):
    """Messages and residuals of some steps, and the weighted sum of the messages."""
    state, found, messages = slots(coder, torch.zeros(numel)), [], []
    for step in range(3):
        x = entries(numel, kind="normal" if step else kind, seed=step).cpu()
        (message,), result, sent = encode_decode(coder, x, state, step)
        found += [message.codes, message.steps, message.lows, result, sent, *state.values()]
        messages.append(message)
    return [*found, sum_quantized(list(zip(weights, messages, strict=True)), torch.zeros(numel))]


@CPU
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decay", [None, 1.0, 0.5])
@pytest.mark.parametrize(
    "coder",
    [
        quantize(bits=8),
        quantize(bits=4, block_size=7),
        quantize(bits=3, block_size=7),
        quantize(bits=2),
        quantize(bits=2, symmetric=True),
        quantize(bits=1, block_size=13),
        qsgd(levels=3),
    ],
)
def test_compiled_loops_have_the_bits_of_torch(coder, decay, kind):
    around = coder if decay is None else error_feedback(compressor=coder, decay=decay)
    for numel, weights in ((1, (1.0, 0.5, 0.25)), (2050, (1 / 3, 1 / 3, 1 / 3)), (2050, (1.0, -0.7, 3.0))):
        made = []
        for name in ("numba", "eager"):
            with implementation(name):
                made.append(on_a_cpu(around, kind, numel, weights))
        assert all(same_bits(one, other) for one, other in zip(*made, strict=True))


@CPU
@pytest.mark.parametrize("num_codes", [256, 4])
@pytest.mark.parametrize("decay", [None, 1.0, 0.5])
def test_differences_are_made_where_they_are_quantised(decay, num_codes):
    sizes = (5, 40_000, 7, 3, 20_000, 1, 16_390)  # with runs of whole blocks, and tensors that share one
    tensors = [entries(size, seed=size).cpu() for size in sizes]
    bucket = Bucket(0, [Item(str(size), one) for size, one in zip(sizes, tensors, strict=True)])
    anchor, residual = entries(bucket.numel, seed=1).cpu(), entries(bucket.numel, seed=2).cpu()
    for block in (64, 1024, 7):
        segments, found = Segments(bucket.numel, block), []
        for difference in (None, bucket.difference(anchor)):
            x = bucket.subtract_from(anchor, bucket.empty()) if difference is None else bucket.empty()
            kept = {} if decay is None else {"residual": residual, "decay": decay, "out": bucket.empty()}
            with implementation("numba"):
                made = quantize_blocks(x, segments, num_codes, None, difference=difference, **kept)
            found.append([*made, kept.get("out", made[0])])
        assert all(same_bits(one, other) for one, other in zip(*found, strict=True))


@CPU
def test_what_compiled_loops_do_not_take_is_left_to_torch():
    with implementation("numba"):
        x = torch.zeros(100)
        assert takes_blocks(x, Segments(100, 10), 16, is_drawn=False)
        assert not takes_blocks(x, Segments(100, 10), 16, is_drawn=True)
        assert not takes_blocks(x, Segments(100, None, (40, 60)), 16, is_drawn=False)
        assert not takes_blocks(x.double(), Segments(100, 10), 16, is_drawn=False)


@CPU
def test_more_messages_than_are_compiled_for_come_one_after_the_other():
    x = entries(3000).cpu()
    (message,), _, _ = encode_decode(quantize(bits=4), x, {})
    with implementation("numba"):
        found = sum_quantized([(0.25, message)] * 20, x)
    with implementation("eager"):
        expected = sum_quantized([(0.25, message)] * 20, x)
    assert torch.equal(found, expected)


def test_levels_around_zero_reach_the_farther_end():
    low, high = torch.tensor([-3.0, -1.0], device=DEVICE), torch.tensor([1.0, 2.0], device=DEVICE)
    step, low = levels_between(low, high, 5, symmetric=True)
    assert step.tolist() == [1.5, 1.0]
    assert low.tolist() == [-3.0, -2.0]


@pytest.mark.skipif(not has_numba(), reason="no Numba")
@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64], ids=str)
def test_the_default_type_of_new_tensors_changes_nothing(default):
    x = host_entries(1000)
    with implementation("numba"):
        expected = quantize_blocks(x, Segments(1000, 64), 256, None, symmetric=False)
        torch.set_default_dtype(default)
        try:
            found = quantize_blocks(x, Segments(1000, 64), 256, None, symmetric=False)
        finally:
            torch.set_default_dtype(torch.float32)
    assert all(same_bits(one, other) for one, other in zip(found, expected, strict=True))
