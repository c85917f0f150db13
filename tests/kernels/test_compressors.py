"""Compressors as they run on a GPU: what they send, and in how many operators."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from relaxcomm import primitives
from relaxcomm.checks.round_trip import context, encode_decode, slots
from relaxcomm.kernels.dispatch import implementation
from relaxcomm.primitives.compressors.weighted_sum import sum_quantized, sum_sparse
from relaxcomm.primitives.exchanges import vote
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from relaxcomm.tensors.layout import Layout
from tests.kernels.comparing import DTYPES, SIZES, both, entries, same_bits
from tests.kernels.interpreter import DEVICE

WAITS = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "unique_dim", "_unique2"}
CODERS = {
    "gaussian_k": primitives.gaussian_k(density=0.05),
    "top_k": primitives.top_k(density=0.05),
    "dgc": primitives.dgc(density=0.05),
    "adaptive_top_k": primitives.adaptive_top_k(),
    "quantize": primitives.quantize(bits=4, block_size=100),
    "stochastic": primitives.quantize(bits=8, rounding="stochastic"),
    "odd": primitives.quantize(bits=5, symmetric=True),
    "minmax_uint8": primitives.minmax_uint8(),
    "sign": primitives.sign(),
    "terngrad": primitives.terngrad(),
    "qsgd": primitives.qsgd(block_size=64),
    "chain": primitives.chain(compressors=(primitives.gaussian_k(density=0.05), primitives.quantize(bits=4))),
    "power_sgd": primitives.power_sgd(matrix_rank=1),
    "chunk_top_k": primitives.chunk_top_k(num_kept=3, chunk_size=64),
    "dct_top_k": primitives.dct_top_k(num_kept=3, chunk_size=8),
    "few": primitives.chain(
        compressors=(primitives.chunk_top_k(num_kept=1, chunk_size=16), primitives.quantize(bits=4))
    ),
}


def coded(coder, tensor, layout=None):
    """The message, and what comes of it."""
    state = slots(coder, tensor)
    messages, result, sent = encode_decode(coder, tensor, state, layout=layout)
    return messages[0].pack(), result, sent


@pytest.mark.every_other("name", "dtype")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in CODERS if name != "power_sgd"])
def test_both_implementations_send_the_same(name, dtype, kernels):
    for numel in (1025,) if dtype != torch.float32 else (1, 1025):
        layout = Layout(("a", "b"), (torch.Size([numel // 3]), torch.Size([numel - numel // 3])))
        found, expected = both(coded, CODERS[name], entries(numel, dtype), layout)
        if name in ("sign", "terngrad", "qsgd"):  # whose scales are sums
            torch.testing.assert_close(found[1], expected[1], rtol=1e-6, atol=0)
        else:
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("numel", SIZES)
def test_levels_are_those_of_the_cpu(numel):
    x = entries(numel).cpu()
    for bits in range(1, 9):
        for coder in (
            primitives.quantize(bits=bits, block_size=100),
            primitives.quantize(bits=max(2, bits), symmetric=True),
        ):
            expected = coded(coder, x)
            with implementation("torch"):
                found = coded(coder, x)
            assert torch.equal(found[0], expected[0])
            assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("name", ["sign", "terngrad", "qsgd", "stochastic"])
def test_scales_are_those_of_the_cpu(name):
    x = entries(4097).cpu()
    layout = Layout(("a", "b"), (torch.Size([97]), torch.Size([4000])))
    (expected,), _, _ = encode_decode(CODERS[name], x, {}, layout=layout)
    with implementation("torch"):
        (found,), _, _ = encode_decode(CODERS[name], x, {}, layout=layout)
    torch.testing.assert_close(found.steps, expected.steps, rtol=1e-6, atol=0)
    torch.testing.assert_close(found.lows, expected.lows, rtol=0, atol=0)
    assert found.codes.shape == expected.codes.shape
    if name == "sign":
        assert torch.equal(found.codes, expected.codes)


@pytest.mark.parametrize("name", ["terngrad", "qsgd", "stochastic"])
def test_what_is_drawn_is_right_on_average_and_new_in_every_step(name):
    x = entries(64)
    coder = primitives.terngrad(clip=None) if name == "terngrad" else CODERS[name]
    with implementation("torch"):
        drawn = torch.stack([encode_decode(coder, x, {}, step)[1] for step in range(400)])
    assert drawn.unique(dim=0).shape[0] > 300
    error = (drawn.mean(0) - x).abs()
    assert (error < 5 * drawn.std(0) / 20 + 1e-6).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CODERS)
def test_error_feedback_loses_nothing(name, dtype):
    coder = primitives.error_feedback(compressor=CODERS[name])
    state = slots(coder, entries(400, dtype))
    came, sent = torch.zeros(2, 400, dtype=torch.float64, device=DEVICE)
    with implementation("torch"):
        for step in range(10):
            gradient = entries(400, dtype, seed=step)
            came += gradient.double()
            _, result, own = encode_decode(coder, gradient, state, step)
            sent += own.double()
            assert torch.equal(own.to(result.dtype), result)
    torch.testing.assert_close(sent + state["residual"].double(), came, rtol=1e-5, atol=1e-4)
    assert sent.any()


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_a_correction_in_one_pass_is_that_of_three(decay):
    """As error feedback around another compressor, which sends the same, corrects."""
    fused = primitives.error_feedback(compressor=CODERS["gaussian_k"], decay=decay)
    chained = primitives.chain(compressors=(CODERS["gaussian_k"], primitives.cast(dtype="float32")))
    apart = primitives.error_feedback(compressor=chained, decay=decay)
    mine, other = slots(fused, entries(1025)), slots(apart, entries(1025))
    with implementation("torch"):
        for step in range(4):
            x = entries(1025, seed=step)
            found, expected = encode_decode(fused, x, mine, step), encode_decode(apart, x, other, step)
            assert torch.equal(found[1], expected[1])
            assert torch.equal(mine["residual"], other["residual"])


@pytest.mark.parametrize(
    "coder",
    [CODERS["gaussian_k"], CODERS["top_k"], primitives.top_k(density=0.0001), CODERS["chain"]],
    ids=["gaussian_k", "top_k", "one entry", "chain"],
)
def test_entries_that_are_not_finite_reach_all(coder):
    for kind in ("nan", "infinite"):
        with implementation("torch"):
            _, result, _ = coded(coder, entries(1025, kind=kind))
        assert not torch.isfinite(result).all()


class Operators(TorchDispatchMode):
    """The operators that run inside, but for views."""

    def __enter__(self):
        self.seen = []
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            self.seen.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


def operators(coder, num_tensors, num_workers, numel=1920):
    """What encoding takes, and decoding what as many workers have sent."""
    x = entries(numel)
    bucket = Bucket(0, [Item(str(index), part) for index, part in enumerate(x.view(num_tensors, -1, 4))])
    layout, state = bucket.layout, dict(coder.init(bucket))
    for attempt in range(2):  # numbers are sent to the device in the first
        with implementation("torch"), Operators() as counted:
            coding = coder.encode_decode(context(step=attempt, layout=layout), x, state, keep_sent=False)
            message = next(coding)
            while True:
                with torch.utils._python_dispatch._disable_current_modes():
                    rows = torch.stack([message.pack()] * num_workers)
                    parts = [(1 / num_workers, message.unpack(row)) for row in rows]
                    parts = parts if message.kind != "dense" else [(1.0, message)]
                try:
                    message = coding.send(parts)
                except StopIteration:
                    break
    return counted.seen


CHAINS = ("chain", "few")
"""They decode the values of each worker's message apart."""


@pytest.mark.parametrize("name", CODERS)
def test_operators_depend_neither_on_tensors_nor_on_workers_and_wait_for_no_tensor(name):
    coder = CODERS[name]
    found = operators(coder, num_tensors=3, num_workers=2)
    assert sum(one in WAITS for one in found) == (name == "adaptive_top_k")  # for its density
    assert found == operators(coder, num_tensors=30, num_workers=2 if name in CHAINS else 7)
    assert len(found) < 400  # by far most of them draw words, which a kernel does in one


def messages_of(coder):
    draws = (entries(1025, seed=seed).cpu() for seed in range(4))
    found = [encode_decode(coder, x, {})[0][0] for x in draws]
    return [(0.1 * (index + 1), message) for index, message in enumerate(found)]


@pytest.mark.parametrize("name", ["top_k", "quantize", "odd", "sign", "terngrad"])
def test_sums_of_messages_are_those_of_the_cpu(name):
    parts, like = messages_of(CODERS[name]), torch.zeros(1025)
    add = sum_sparse if name == "top_k" else sum_quantized
    with implementation("torch"):
        found = add(parts, like)
    torch.testing.assert_close(found, add(parts, like), rtol=1e-6, atol=1e-6)


def test_batches_of_matrices_give_what_one_by_one_gives():
    shapes = [torch.Size([8, 6])] * 3 + [torch.Size([5, 9]), torch.Size([4])] + [torch.Size([8, 6])]
    layout = Layout(tuple(map(str, range(6))), tuple(shapes))
    x = entries(layout.numel).cpu()
    coder = primitives.power_sgd(matrix_rank=2)
    bucket_state = {"right": torch.randn(6 * 2 * 4 + 9 * 2, generator=torch.Generator().manual_seed(1))}
    expected = encode_decode(coder, x, dict(bucket_state), layout=layout)
    with implementation("torch"):
        found = encode_decode(coder, x, dict(bucket_state), layout=layout)
    torch.testing.assert_close(found[1], expected[1])
    torch.testing.assert_close(found[2], expected[2])


@pytest.mark.parametrize("voters", [2, 3, 6])
def test_votes_counted_at_once_are_those_counted_in_turn(voters):
    messages = [
        encode_decode(CODERS["sign"], entries(1025, seed=one, kind="nan" if one == 5 else "normal").cpu(), {})
        for one in range(voters)
    ]
    rows = torch.stack([message.pack() for (message,), _, _ in messages])
    for rank in range(voters):
        ((local,), _, _) = messages[rank]
        expected = vote._majority(local, rows, rank)
        with implementation("torch"):
            found = vote._majority(local, rows, rank)
        assert torch.equal(found.codes, expected.codes)
        assert same_bits(found.steps, expected.steps)
