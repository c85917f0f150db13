"""Error feedback around what compressors do on a GPU: the same bits, and no launch more."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
import torch

from relaxcomm import primitives
from relaxcomm.checks.round_trip import context, encode_decode, slots
from relaxcomm.fields.schedules import piecewise
from relaxcomm.kernels.dispatch import implementation
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from relaxcomm.tensors.layout import Layout
from relaxcomm.testing import PretendGpu
from tests.kernels.comparing import both, entries, same_bits
from tests.kernels.interpreter import HAS_GPU
from tests.kernels.test_compressors import CODERS

FUSED = {
    **{name: CODERS[name] for name in ("quantize", "stochastic", "odd", "minmax_uint8", "sign", "terngrad")},
    "qsgd": CODERS["qsgd"],
    "scheduled": primitives.quantize(bits=piecewise(values=(8, 3), steps=(2,))),
}


def fed_back(coder, decay, dtype, numel=1025):
    """Messages and residuals of some steps, the tensors of which are not all finite in the last."""
    around = primitives.error_feedback(compressor=coder, decay=decay)
    layout = Layout(("a", "b"), (torch.Size([25]), torch.Size([numel - 25])))
    state, found = slots(around, entries(numel, dtype)), []
    for step in range(4):
        x = entries(numel, dtype, kind="nan" if step == 3 else "normal", seed=step)
        messages, result, sent = encode_decode(around, x, state, step, layout)
        message = messages[0]
        found += [message.pack()] if step < 3 else []  # in bytes a NaN has a sign
        found += [message.codes, message.steps, message.lows, state["residual"], result, sent]
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("decay", [1.0, 0.5])
@pytest.mark.parametrize("name", FUSED)
def test_a_quantisers_correction_has_the_bits_of_passes_apart(name, decay, dtype, monkeypatch):
    with implementation("torch"):
        found = fed_back(FUSED[name], decay, dtype)
        monkeypatch.setattr(type(FUSED[name]), "takes_feedback", lambda self, tensor: False)
        expected = fed_back(FUSED[name], decay, dtype)
    assert all(same_bits(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.every_other("name", "dtype")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUSED)
def test_both_implementations_leave_the_same(name, dtype, kernels):
    found, expected = both(fed_back, FUSED[name], 0.5, dtype)
    for one, other in zip(found, expected, strict=True):
        if one.dtype == torch.uint8 and name in ("sign", "terngrad", "qsgd"):  # whose scales are sums
            assert one.shape == other.shape
        elif name in ("sign", "terngrad", "qsgd"):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6, equal_nan=True)
        else:
            assert same_bits(one, other)


def launched(coder, kind, num_tensors):
    """What a GPU does for coding, two workers' messages decoded, and why the host waits."""
    with PretendGpu() as gpu, implementation(kind), np.errstate(all="ignore"):
        x = entries(1920).to("cuda")
        bucket = Bucket(0, [Item(str(index), part) for index, part in enumerate(x.view(num_tensors, -1, 4))])
        state = dict(coder.init(bucket))
        for step in range(2):  # numbers are sent to the device in the first
            gpu.work.clear()
            cx = context(step=step, layout=bucket.layout)
            coding = coder.encode_decode(cx, x.clone(), state, keep_sent=False)
            message = next(coding)
            with suppress(StopIteration):
                while True:
                    dense = message.kind in ("dense", "shared_support")
                    message = coding.send([(1.0, message)] if dense else [(0.5, message), (0.5, message)])
        return dict(gpu.work.kernels), gpu.work.waits


@pytest.mark.parametrize("name", CODERS)
def test_error_feedback_around_them_grows_with_no_tensors_and_waits_no_more_than_they_do(name):
    coder = primitives.error_feedback(compressor=CODERS[name])
    few, waits = launched(coder, "torch", num_tensors=3)
    assert len(waits) == (name == "adaptive_top_k")
    assert few == launched(coder, "torch", num_tensors=30)[0]


KERNELS = {
    "quantize": ("_blocks", "_pack", "_sum"),
    "qsgd": ("_blocks", "_pack", "_sum"),
    "terngrad": ("_parts", "_scales", "_pack", "_sum"),
    "sign": ("_parts", "_scales", "_pack", "_sum"),
    "stochastic": ("_quantize", "_sum"),  # a code is a byte
    "odd": ("_quantize", "_sum"),
}


@pytest.mark.skipif(HAS_GPU, reason="what a pretended GPU holds is for Triton's interpreter")
@pytest.mark.parametrize("name", KERNELS)
def test_around_a_quantiser_error_feedback_takes_no_launch_more(name, kernels):
    """One kernel encodes, two or three, and one decodes, with and without; 5 bits are packed apart."""
    alone, _ = launched(CODERS[name], "triton", num_tensors=8)
    around, _ = launched(primitives.error_feedback(compressor=CODERS[name]), "triton", num_tensors=8)
    assert around == alone
    assert {kernel: around.pop(kernel) for kernel in KERNELS[name]} == dict.fromkeys(KERNELS[name], 1)
    assert name == "odd" or around == {"clone": 1}  # of the tensor, by this test


@pytest.mark.parametrize("name", ["top_k", "chunk_top_k"])
def test_a_message_of_the_largest_entries_takes_no_launch_to_be_filled(name):
    found, _ = launched(CODERS[name], "torch", num_tensors=3)
    assert "full" not in found
