"""Short tensors are coded together: to the bits of each on its own, in hardly more operators."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from relaxcomm.checks.round_trip import context
from relaxcomm.primitives import chunk_top_k, dct_top_k, sign, terngrad
from relaxcomm.primitives.compressors import block_top_k
from relaxcomm.primitives.compressors.decode import finish
from relaxcomm.primitives.compressors.uniform_quantizer import UniformQuantizer
from relaxcomm.primitives.compressors.weighted_sum import sum_quantized
from relaxcomm.tensors import segments
from relaxcomm.tensors.layout import Layout
from relaxcomm.tensors.segments import Segments

CODERS = {"sign": sign(), "terngrad": terngrad(), "terngrad that cuts nothing": terngrad(clip=None)}
CHOOSING = {"two": chunk_top_k(num_kept=2, chunk_size=8), "dct": dct_top_k(num_kept=4, chunk_size=16)}
SHAPES = [(16, 16), (16,), (0, 4), (1,), (16_385,), (3,), (33, 7), (20_001,), (2,), (16_384,), (1,), (9, 9)]
SPOILT = {
    "nothing": lambda x: x,
    "NaN": lambda x: x.index_fill(0, torch.tensor([3, 300]), torch.nan),
    "infinity": lambda x: x.index_fill(0, torch.tensor([260, 50_000]), torch.inf),
    "zeros": lambda x: x.index_fill(0, torch.arange(20_000), 0.0),
    "tiny": lambda x: x * 1e-39,
    "sums that overflow": lambda x: x.clamp(-1, 1) * torch.finfo(x.dtype).max,
}


def layout_of(shapes):
    return Layout(tuple(map(str, range(len(shapes)))), tuple(map(torch.Size, shapes)))


def coded(coder, x, layout):
    """The tensors of a message, and the sum of two such."""
    coding = coder.encode_decode(context(step=1, layout=layout), x, {}, keep_sent=False)
    message = next(coding)
    found = [one for one in vars(message).values() if isinstance(one, torch.Tensor)]
    return [*found, finish(coding, [(0.25, message), (0.5, message)])[0]]


@pytest.fixture
def each_alone(monkeypatch):
    """Called, no segment is short any more."""

    def forget():
        for room in (segments, block_top_k):
            monkeypatch.setattr(room, "SHORT", 0)
        Segments.groups.cache_clear()

    Segments.groups.cache_clear()
    yield forget
    Segments.groups.cache_clear()


@pytest.mark.parametrize("spoilt", SPOILT)
@pytest.mark.parametrize("coder", [*CODERS.values(), *CHOOSING.values()], ids=[*CODERS, *CHOOSING])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_together_they_are_coded_as_each_alone(coder, dtype, spoilt, each_alone):
    layout = layout_of(SHAPES)
    x = SPOILT[spoilt](torch.randn(layout.numel, generator=torch.Generator().manual_seed(3)).to(dtype))
    together = coded(coder, x, layout)
    each_alone()
    for one, other in zip(together, coded(coder, x, layout), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("coder", CODERS.values(), ids=CODERS)
def test_no_more_are_coded_together_than_fit_the_cache(coder, each_alone, monkeypatch):
    monkeypatch.setattr(segments, "_CACHED", 1000)
    layout = layout_of([(400,), (16, 16), (500,), (3,), (999,), (2,), (1500,), (7,)])
    x = torch.randn(layout.numel, generator=torch.Generator().manual_seed(3))
    together = coded(coder, x, layout)
    each_alone()
    assert all(map(torch.equal, together, coded(coder, x, layout)))


def test_levels_of_tensors_together_are_those_of_each():
    parts = torch.randn(500, generator=torch.Generator().manual_seed(3)).split([300, 1, 199])
    found, plain = terngrad().spread_each(parts), UniformQuantizer.spread_each(terngrad(), parts)
    assert found[0].equal(plain[0])


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", CODERS)
def test_more_tensors_take_no_more_operators_but_sums_and_draws(name):
    """A sum each, or for each a draw of its words and one more."""
    counts = []
    for number in (10, 110):
        layout = layout_of([(8, 8), (8,)] * (number // 2))
        x = torch.ones(layout.numel)
        message = next(CODERS[name].encode_decode(context(layout=layout), x, {}, keep_sent=False))
        with Operators() as encoding:
            next(CODERS[name].encode_decode(context(layout=layout), x, {}, keep_sent=False))
        with Operators() as decoding:
            sum_quantized([(0.5, message)], x)
        counts.append((encoding.count, decoding.count))
    (few, few_decoding), (many, many_decoding) = counts
    assert few_decoding == many_decoding
    assert many - few <= 2 * 100


def test_more_tensors_take_no_more_operators_to_choose():
    counts = []
    for number in (10, 110):
        layout = layout_of([(8, 8), (9,)] * (number // 2))
        x = torch.ones(layout.numel)
        blocks = CHOOSING["two"].blocks(layout)
        block_top_k.largest(x, blocks)  # which keeps where blocks begin
        with Operators() as seen:
            block_top_k.largest(x, blocks)
        counts.append(seen.count)
    assert counts[0] == counts[1]
