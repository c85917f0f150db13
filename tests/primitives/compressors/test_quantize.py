"""Quantisers against definitions in NumPy, their bounds on awkward tensors, and drawing without bias."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import relaxcomm
from relaxcomm.network.transport import Membership
from relaxcomm.primitives import chain, error_feedback, minmax_uint8, qsgd, quantize, terngrad, top_k
from relaxcomm.primitives.compressors.decode import as_dense
from relaxcomm.roles import Context
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from relaxcomm.tensors.precision import wide

BLOCK = 64
ROUNDED = [
    minmax_uint8(block_size=BLOCK),
    *(quantize(bits=bits, block_size=BLOCK) for bits in (1, 2, 3, 7, 8)),
    *(quantize(bits=bits, block_size=BLOCK, symmetric=True) for bits in (2, 5, 8)),
]
DRAWN = [
    quantize(bits=3, block_size=BLOCK, rounding="stochastic"),
    quantize(bits=4, block_size=BLOCK, rounding="stochastic", symmetric=True),
]
AWKWARD = {
    "zeros": torch.zeros(1000),
    "signed zeros": torch.tensor([0.0, -0.0]).repeat(500),
    "constant": torch.full((1000,), 3.7),
    "denormal": torch.linspace(-1e-40, 1e-40, 1000),
    "tiny": 1e-9 * torch.randn(1000, generator=torch.Generator().manual_seed(1)),
    "outlier": torch.cat([torch.randn(999, generator=torch.Generator().manual_seed(2)), torch.tensor([1e3])]),
    "offset": 1000 + 1e-3 * torch.randn(1000, generator=torch.Generator().manual_seed(3)),
    "huge": 1e37 * torch.randn(1000, generator=torch.Generator().manual_seed(4)),
    "one": torch.tensor([-2.5]),
}


def decoded(compressor, tensor, *, step=0, rank=0, layout=None):
    """What a tensor's message decodes to, after its way over the network."""
    cx = Context(
        step=step, start=0, membership=Membership(rank, 3), learning_rate=lambda bucket: 0.1, layout=layout
    )
    state = dict(compressor.init(Bucket(0, [Item("tensor", tensor)])))
    coding = compressor.encode_decode(cx, tensor.clone(), state, keep_sent=True)
    message = next(coding)
    packed = message.pack()
    layout = cx.layout_of(tensor.numel())
    assert packed.numel() == compressor.layout_bytes(layout, tensor.element_size())
    with pytest.raises(StopIteration) as stop:
        coding.send([(1.0, message.unpack(torch.cat([packed.new_zeros(3), packed])[3:]))])
    result, own = stop.value.value
    torch.testing.assert_close(as_dense(own, tensor), result, rtol=0, atol=0, equal_nan=True)
    assert result.dtype == wide(tensor.dtype)
    return result


def meaning(compressor):
    """Its bits, and whether its levels lie around 0."""
    return compressor.bits, compressor.symmetric


def reference(x, bits, symmetric):
    """Block by block, in float64; and the step of each entry's block."""
    decoded, steps = np.zeros(len(x)), np.zeros(len(x))
    for start in range(0, len(x), BLOCK):
        part = x[start : start + BLOCK].astype(np.float64)
        low, high, top = part.min(), part.max(), 2**bits - 1
        if symmetric:
            high, top = np.abs(part).max(), top - 1
            low = -high
        is_moved = low < 0 <= high and bits > 2 and not symmetric
        step = (high - low) / (top - 1 if is_moved else top)
        if is_moved:
            low = np.floor(low / step) * step if step > 2e-38 else 0.0
        codes = np.floor((part - low) / step + 0.5) if step > 2e-38 else np.zeros(len(part))
        decoded[start : start + BLOCK] = low + codes * step
        steps[start : start + BLOCK] = step
    return decoded, steps


@pytest.mark.parametrize("numel", [1, 63, 64, 65, 1000, 300_001])
@pytest.mark.parametrize("compressor", ROUNDED, ids=repr)
def test_rounding_follows_its_definition(compressor, numel):
    tensor = torch.randn(numel, generator=torch.Generator().manual_seed(numel))
    result = decoded(compressor, tensor).double().numpy()
    expected, steps = reference(tensor.numpy(), *meaning(compressor))
    other = np.abs(result - expected) > 1e-5
    assert other.mean() < 1e-3  # half-way between two levels, rounding decides
    assert (np.abs(result - expected)[other] <= steps[other] * 1.001).all()


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("compressor", ROUNDED + DRAWN, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_the_error_is_bounded_as_documented(compressor, name, dtype):
    tensor = AWKWARD[name].to(dtype)
    if not torch.isfinite(tensor).all():
        pytest.skip("beyond float16's range")
    result = decoded(compressor, tensor)
    _, steps = reference(tensor.float().numpy(), *meaning(compressor))
    allowed = steps * (1 if compressor.facts.unbiased else 0.5)
    finest = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps if dtype != torch.float64 else 0)
    slack = 4 * finest * tensor.double().abs().max().item() + 256 * 2e-38 + torch.finfo(dtype).tiny
    off = (result.double() - tensor.double()).abs().numpy()
    assert (off <= allowed * 1.0001 + slack).all()
    if compressor.bits > 2 or compressor.symmetric:
        assert (result[tensor == 0] == 0).all()


@pytest.mark.parametrize("compressor", ROUNDED + DRAWN, ids=repr)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_shows_in_its_block_alone(compressor, bad):
    tensor = torch.randn(300)
    tensor[100] = bad
    result = decoded(compressor, tensor)
    assert not torch.isfinite(result[64:128]).any()
    assert torch.isfinite(result[:64]).all()
    assert torch.isfinite(result[128:]).all()


def test_a_chain_quantises_the_chosen_values():
    """Against NumPy: the largest entries in order of their places, in blocks of their own."""
    tensor = torch.randn(1000, generator=torch.Generator().manual_seed(5))
    result = decoded(CHAINED, tensor)
    places = np.argsort(-np.abs(tensor.numpy()))[:200]
    assert set(np.flatnonzero(result.numpy())) <= set(places)
    error = np.abs(result.numpy() - tensor.numpy())[places]
    kept = np.abs(tensor.numpy()[places])
    assert 0 < error.max() <= 2 * kept.max() / 15 / 2 * 1.001  # the range of a block is at most 2 max
    tensor[700] = float("nan")
    assert not torch.isfinite(decoded(CHAINED, tensor)).all()


def test_an_outlier_spoils_its_block_alone():
    tensor = torch.randn(65536, generator=torch.Generator().manual_seed(0))
    tensor[77] = 1000.0
    result = decoded(minmax_uint8(), tensor)
    rest = torch.arange(65536) >= 1024
    lost = (result - tensor)[rest].norm() / tensor[rest].norm()
    assert lost < 0.01
    assert (result == 0).float().mean() < 0.03  # the block itself, and what is below half a step


@pytest.mark.parametrize("compressor", DRAWN, ids=repr)
def test_drawing_is_unbiased_and_apart_on_each_rank(compressor):
    tensor, times = torch.linspace(-2, 3, 200), 1000
    total, squares = torch.zeros(200, dtype=torch.float64), 0.0
    for step in range(times):
        result = decoded(compressor, tensor, step=step)
        total += result.double()
        squares += float((result - tensor).square().sum())
    _, steps = reference(tensor.numpy(), *meaning(compressor))
    # Five standard errors of an entry that is drawn between two levels.
    assert (
        np.abs(total.numpy() / times - tensor.double().numpy()) <= 5 * steps / 2 / times**0.5 + 1e-6
    ).all()
    assert squares / times <= compressor.contraction(200) * float(tensor.square().sum())
    assert torch.equal(decoded(compressor, tensor), decoded(compressor, tensor))
    assert not torch.equal(decoded(compressor, tensor), decoded(compressor, tensor, rank=1))


NEAR = [(1e-5, 1 << 20), (1e-3, 1 << 16), (0.3, 1 << 13)]  # steps from a level, and of how many entries


def assert_so_many(found, share, numel):
    """That a share of independent draws came out so."""
    expected, deviation = share * numel, (share * (1 - share) * numel) ** 0.5
    assert found > 0
    assert abs(found - expected) <= 5 * deviation, (found, expected)


@pytest.mark.parametrize(("share", "numel"), NEAR)
@pytest.mark.parametrize(
    ("compressor", "levels"),
    [
        (qsgd(levels=127, block_size=1 << 12), 127),
        (qsgd(levels=7, block_size=1 << 12), 7),
        (terngrad(clip=None), 1),
        (quantize(bits=8, block_size=1 << 12, rounding="stochastic", symmetric=True), 127),
    ],
    ids=repr,
)
def test_entries_next_to_zero_are_sent_as_often_as_they_should(compressor, levels, share, numel):
    """Beside one entry that sets the step of each block, all others are a small part of a step."""
    tensor = torch.full((numel,), share / levels)
    tensor[::2] *= -1
    tensor[:: 1 << 12] = 1.0
    if isinstance(compressor, qsgd):
        share /= float(tensor[: 1 << 12].norm())
    small = torch.arange(numel) % (1 << 12) != 0
    result = decoded(compressor, tensor)[small]
    sent = result != 0
    assert_so_many(int(sent.sum()), share, int(small.sum()))
    assert bool((result[sent] * tensor[small][sent] > 0).all())


@pytest.mark.parametrize(("share", "numel"), NEAR)
@pytest.mark.parametrize(("bits", "level"), [(8, 0), (8, 254), (4, 7)])
@pytest.mark.parametrize("upper", [False, True])
def test_entries_next_to_any_level_leave_it_as_often_as_they_should(bits, level, upper, share, numel):
    """In float64, which tells such entries from the level; above a level, or below the next one."""
    step = 1 / (2**bits - 1)
    tensor = torch.full((numel,), (level + (1 - share if upper else share)) * step, dtype=torch.float64)
    tensor[:: 1 << 12], tensor[1 :: 1 << 12] = 0.0, 1.0
    near = torch.arange(numel) % (1 << 12) > 1
    coder = quantize(bits=bits, block_size=1 << 12, rounding="stochastic")
    found = (decoded(coder, tensor)[near] / step).round()
    counts = [int((found == at).sum()) for at in (level, level + 1)]
    assert sum(counts) == int(near.sum())
    assert_so_many(counts[0 if upper else 1], share, int(near.sum()))


CHAINED = chain(compressors=(top_k(density=0.2), quantize(bits=4, block_size=BLOCK)))


def conserves(compressor):
    """What was sent and the residual are together all that came in, over 30 steps."""
    coder, tensor = error_feedback(compressor=compressor), torch.randn(1001)
    state = dict(coder.init(Bucket(0, [Item("tensor", tensor)])))
    sent = torch.zeros(1001, dtype=torch.float64)
    for step in range(30):
        cx = Context(step=step, start=0, membership=Membership(0, 3), learning_rate=lambda bucket: 0.1)
        coding = coder.encode_decode(cx, tensor, state, keep_sent=False)
        message = next(coding)
        with pytest.raises(StopIteration) as stop:
            coding.send([(1.0, message)])
        sent += stop.value.value[0].double()
    torch.testing.assert_close(sent + state["residual"].double(), 30 * tensor.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("compressor", [*ROUNDED, *DRAWN, CHAINED], ids=repr)
def test_error_feedback_loses_nothing(compressor):
    conserves(compressor)


@pytest.mark.parametrize("arguments", [{"bits": 0}, {"bits": 9}, {"bits": 1, "symmetric": True}])
def test_what_makes_no_sense_is_refused(arguments):
    with pytest.raises(relaxcomm.ConfigError, match="bits"):
        quantize(**arguments)
