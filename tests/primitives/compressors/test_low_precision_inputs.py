"""In bfloat16 and float16, what was sent and what is kept is what came in."""

from __future__ import annotations

import pytest
import torch

from relaxcomm import primitives
from relaxcomm.checks.round_trip import encode_decode, slots

STEPS, SMALL, NUMEL = 300, 100, 400  # entries that are small and constant, before those that are noise
CODERS = {
    "top_k": primitives.top_k(density=0.05),
    "gaussian_k": primitives.gaussian_k(density=0.05),
    "dgc": primitives.dgc(density=0.05, sample=0.5),
    "random_k": primitives.random_k(density=0.05),
    "chunk_top_k": primitives.chunk_top_k(num_kept=2, chunk_size=40),
    "dct_top_k": primitives.dct_top_k(num_kept=2, chunk_size=40),
    "quantize": primitives.quantize(bits=2),
    "sign": primitives.sign(),
    "power_sgd": primitives.power_sgd(matrix_rank=1),
    "cast": primitives.cast(dtype="float16"),
    "chain": primitives.chain(compressors=(primitives.top_k(density=0.05), primitives.quantize(bits=4))),
}


def inputs(dtype):
    draw = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        gradient = torch.randn(NUMEL, generator=draw)
        gradient[:SMALL] = 1e-3
        yield gradient.to(dtype)


@pytest.mark.every_other("name", "dtype")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CODERS)
def test_error_feedback_loses_nothing(name, dtype):
    coder = primitives.error_feedback(compressor=CODERS[name])
    state = slots(coder, torch.zeros(NUMEL, dtype=dtype))
    came, sent = torch.zeros(NUMEL, dtype=torch.float64), torch.zeros(NUMEL, dtype=torch.float64)
    for step, gradient in enumerate(inputs(dtype)):
        came += gradient.double()
        _, result, own = encode_decode(coder, gradient, state, step)
        sent += own.double()
        assert torch.equal(own.to(result.dtype), result)
    torch.testing.assert_close(sent + state["residual"].double(), came, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["top_k", "gaussian_k", "dgc", "random_k", "chain"])
def test_momentum_correction_loses_nothing(name, dtype):
    """All momentum u that was ever gathered has been sent, or is still kept."""
    coder = primitives.momentum_correction(compressor=CODERS[name], momentum=0.9)
    state = slots(coder, torch.zeros(NUMEL, dtype=dtype))
    u, gathered, sent = (torch.zeros(NUMEL, dtype=torch.float64) for _ in range(3))
    for step, gradient in enumerate(inputs(dtype)):
        u = 0.9 * u + gradient.double()
        gathered += u
        own = encode_decode(coder, gradient, state, step)[2].double()
        sent += own
        u[own != 0] = 0
    torch.testing.assert_close(sent + state["residual"].double(), gathered, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["top_k", "random_k", "sign"])
def test_estimates_of_ef21_follow_what_was_sent(name, dtype):
    """The estimate comes to a constant gradient, beside larger ones, as near as its messages can say."""
    coder = primitives.ef21(compressor=CODERS[name])
    gradient = next(iter(inputs(dtype)))
    state = slots(coder, gradient)
    for step in range(STEPS):
        encode_decode(coder, gradient, state, step)
    if name != "sign":  # whose estimate swings around it
        torch.testing.assert_close(state["estimate"].double(), gradient.double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(state["mean_estimate"], state["estimate"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", CODERS)
def test_messages_are_no_larger_for_it(name):
    """Values are sent in two bytes, where a coder sends values."""
    coder = primitives.error_feedback(compressor=CODERS[name])
    tensor = torch.randn(NUMEL).bfloat16()
    messages, *_ = encode_decode(coder, tensor, slots(coder, tensor))
    assert sum(message.num_bytes for message in messages) == coder.message_bytes(NUMEL, 2)


def test_state_of_float32_and_float64_has_their_type():
    for dtype in (torch.float32, torch.float64):
        for coder in (primitives.error_feedback, primitives.momentum_correction, primitives.ef21):
            state = slots(coder(compressor=primitives.top_k(density=0.1)), torch.zeros(5, dtype=dtype))
            assert {slot.dtype for slot in state.values()} == {dtype}
