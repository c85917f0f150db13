"""Largest entries of blocks and of their cosine transforms, against NumPy and SciPy's definition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from relaxcomm.primitives import cast, chain, chunk_top_k, dct_top_k, quantize, top_k
from relaxcomm.primitives.compressors.block_top_k import largest
from relaxcomm.primitives.compressors.weighted_sum import sum_sparse
from relaxcomm.tensors import segments
from relaxcomm.tensors.bit_packing import unpack_places
from relaxcomm.tensors.layout import Layout
from relaxcomm.tensors.messages import BlockSparse
from relaxcomm.tensors.segments import Blocks
from tests.primitives.compressors.test_quantize import AWKWARD, conserves, decoded

SHAPES = (torch.Size([70, 33]), torch.Size([0]), torch.Size([100]), torch.Size([5, 4, 3]), torch.Size([1]))
LAYOUT = Layout(tuple("abcde"), SHAPES)
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def drawn(seed=0, dtype=torch.float32):
    return torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(seed)).to(dtype)


def tensors(flat):
    ends = np.cumsum([0, *(shape.numel() for shape in SHAPES)])
    return [flat[a:b].reshape(s) for (a, b), s in zip(itertools.pairwise(ends), SHAPES, strict=True)]


def top(values, k):
    """The k largest of an array, zeros elsewhere."""
    kept, flat = np.zeros(values.size), values.ravel()
    chosen = np.argsort(-np.abs(flat), kind="stable")[:k]
    kept[chosen] = flat[chosen]
    return kept.reshape(values.shape)


def dct(x, axis):
    """`2 sum_n x_n cos(pi (2 n + 1) k / 2 N)`, made orthonormal, along an axis."""
    size = x.shape[axis]
    k, n = np.arange(size)[:, None], np.arange(size)[None, :]
    matrix = 2 * np.cos(np.pi * k * (2 * n + 1) / (2 * size)) / np.sqrt(2 * size)
    matrix[0] /= np.sqrt(2)
    return np.moveaxis(np.tensordot(matrix, x, axes=(1, axis)), 0, axis), matrix


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_chunks_of_each_tensor(dtype):
    flat = drawn(dtype=dtype)
    found = tensors(decoded(chunk_top_k(num_kept=3, chunk_size=64), flat, layout=LAYOUT).double().numpy())
    for x, y in zip(tensors(flat.double().numpy()), found, strict=True):
        chunks = [top(x.ravel()[a : a + 64], 3) for a in range(0, x.size, 64)]
        # Entries of low precision may be equal in size, and either may be sent.
        sizes = np.sort(np.abs(np.concatenate([*chunks, np.zeros(0)])))
        np.testing.assert_array_equal(np.sort(np.abs(y.ravel())), sizes)
        assert ((y == 0) | (y == x)).all()


@pytest.mark.parametrize("chunk", [8, 64])
def test_cosine_transforms(chunk):
    flat = drawn(dtype=torch.float64)
    found = tensors(decoded(dct_top_k(num_kept=5, chunk_size=chunk), flat, layout=LAYOUT).numpy())
    for x, y in zip(tensors(flat.numpy()), found, strict=True):
        matrix = x.reshape(x.shape[0], -1) if x.ndim > 1 else x.reshape(1, -1)
        expected = np.zeros_like(matrix)
        for row in range(0, matrix.shape[0], chunk):
            for column in range(0, matrix.shape[1], chunk):
                block = matrix[row : row + chunk, column : column + chunk]
                once, left = dct(block, 0)
                coefficients, right = dct(once, 1)
                restored = left.T @ top(coefficients, 5) @ right
                expected[row : row + chunk, column : column + chunk] = restored
        np.testing.assert_allclose(y, expected.reshape(x.shape), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_sent_whole_arrives_exactly(dtype):
    flat = drawn(dtype=dtype)
    whole = decoded(dct_top_k(num_kept=1 << 20, chunk_size=16), flat, layout=LAYOUT)
    assert torch.equal(whole, flat.to(whole.dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_coefficients_but_one_are_nearly_the_tensor(dtype):
    flat = (drawn()[:16].view(16, 1) * torch.ones(16)).flatten().to(dtype)  # 16 coefficients, the others 0
    layout = Layout(("a",), (torch.Size([16, 16]),))
    almost = decoded(dct_top_k(num_kept=255, chunk_size=16), flat, layout=layout)
    torch.testing.assert_close(almost, flat.to(almost.dtype), rtol=0, atol=256 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize(
    "compressor", [chunk_top_k(num_kept=9, chunk_size=64), dct_top_k(num_kept=9)], ids=repr
)
def test_they_contract_awkward_tensors(compressor, name):
    x = AWKWARD[name]
    lost = (decoded(compressor, x).double() - x.double()).square().sum()
    assert lost <= compressor.contraction(x.numel()) * x.double().square().sum() * 1.001 + 1e-70


@pytest.mark.parametrize(
    "compressor", [chunk_top_k(num_kept=3, chunk_size=16), dct_top_k(num_kept=3)], ids=repr
)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_shows(compressor, bad):
    flat = drawn()
    flat[1234] = bad
    assert not torch.isfinite(decoded(compressor, flat, layout=LAYOUT)).all()


@pytest.mark.parametrize("cached", [1, 24, 100, 700, 1 << 19])
def test_sums_do_not_depend_on_how_much_the_cache_holds(monkeypatch, cached):
    blocks = chunk_top_k(num_kept=3, chunk_size=16).blocks(LAYOUT)
    messages = [BlockSparse(*largest(drawn(seed), blocks), blocks) for seed in range(3)]
    expected = torch.zeros(LAYOUT.numel)
    for message in messages:
        expected.index_add_(0, message.places(), message.values, alpha=0.5)
    monkeypatch.setattr(segments, "_CACHED", cached)
    like = torch.empty(LAYOUT.numel)
    ranges = list(messages[0].ranges(like))
    assert [ranges[0].start, ranges[-1].stop] == [0, LAYOUT.numel]
    assert all(one.stop - one.start <= max(cached, 16) for one in ranges)
    assert all(one.stop == other.start for one, other in itertools.pairwise(ranges))
    assert sum_sparse([(0.5, message) for message in messages], like).equal(expected)


def test_no_message_is_a_sum_of_zeros():
    assert sum_sparse([], torch.ones(3)).tolist() == [0, 0, 0]


CHAINED = chain(compressors=(dct_top_k(num_kept=9), quantize(bits=8)))


@pytest.mark.parametrize(
    "compressor",
    [
        chunk_top_k(num_kept=9, chunk_size=64),
        dct_top_k(num_kept=9),
        CHAINED,
        chain(compressors=(chunk_top_k(num_kept=9, chunk_size=64), quantize(bits=2))),
    ],
    ids=repr,
)
def test_error_feedback_loses_nothing(compressor):
    conserves(compressor)


def test_a_chain_codes_coefficients():
    flat = drawn()
    plain = decoded(dct_top_k(num_kept=9), flat, layout=LAYOUT)
    for rest in (cast(dtype="float64"), quantize(bits=8)):
        coded = decoded(chain(compressors=(dct_top_k(num_kept=9), rest)), flat, layout=LAYOUT)
        assert (coded - plain).norm() < 0.02 * plain.norm()


def test_places_inside_blocks_take_fewer_bytes():
    """Twelve bits for a place and half a byte for a value, where top-k takes four bytes and four."""
    coder = chain(compressors=(chunk_top_k(num_kept=64), quantize(bits=4)))
    scale_bytes = 8 * 63  # of 1024 values each
    assert coder.message_bytes(4096 * 1000, 4) == 96_000 + 32_000 + scale_bytes + 4
    assert top_k(density=64 / 4096).message_bytes(4096 * 1000, 4) == 64_000 * 8 + 4


@pytest.mark.parametrize("size", [1, 2, 16, 100, 256])
def test_one_of_few_is_the_first_of_the_largest(size):
    blocks = (Blocks(3, 1000, size, 1),)
    flat = torch.randn(3 + 1000 * size, generator=torch.Generator().manual_seed(size)) * 10.0
    flat[3 : 3 + size] = 0
    flat[3 + size : 3 + 2 * size] = -2.0
    values, packed, count = largest(flat, blocks)
    places = unpack_places(packed, 1000, size)
    rows = flat[3:].view(1000, size)
    chosen = rows.abs().gather(1, places.long().view(-1, 1)).view(-1)
    torch.testing.assert_close(chosen, rows.abs().amax(1), rtol=2.0**-15, atol=0)  # the bits of the place
    assert values.equal(rows.gather(1, places.long().view(-1, 1)).view(-1))
    assert places[:2].tolist() == [0, 0]
    assert count.item() == 1000


@pytest.mark.parametrize("spoilt", [float("nan"), float("-inf")])
def test_one_of_few_never_hides_what_is_not_finite(spoilt):
    flat = torch.full((32,), 3e38)
    flat[21] = spoilt
    values, packed, _ = largest(flat, (Blocks(0, 2, 16, 1),))
    assert unpack_places(packed, 2, 16).tolist() == [0, 5]
    assert not values[1].isfinite()
