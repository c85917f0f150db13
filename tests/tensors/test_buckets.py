"""Buckets keep the layout of what lies in them."""

import pytest
import torch

from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item


def test_channels_last_keeps_its_strides_in_a_bucket():
    weight = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    bucket = Bucket(0, [Item("a", torch.randn(5)), Item("b", weight)])
    flat = bucket.gather(bucket.empty())
    assert bucket.views(flat)[1].stride() == weight.stride()
    torch.testing.assert_close(bucket.views(flat)[1], weight, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("tensor", "shape"),
    [
        (torch.zeros(4, 6).t(), (4, 6)),
        (torch.zeros(4, 3, 2, 5).to(memory_format=torch.channels_last), (4, 2, 5, 3)),
        (torch.zeros(4, 6)[:, ::2].t(), (3, 4)),  # has gaps, so that it is copied row by row
    ],
    ids=["column-major", "channels-last", "gaps"],
)
def test_a_layout_has_the_shapes_in_memory(tensor, shape):
    """What reads the flat buffer as a matrix must find its rows there."""
    bucket = Bucket(0, [Item("a", tensor)])
    assert bucket.layout.shapes == (shape,)
    tensor.copy_(torch.randn(tensor.shape))
    rows = bucket.gather(bucket.empty()).view(shape)
    order = sorted(range(tensor.dim()), key=lambda dimension: -bucket.views(rows)[0].stride(dimension))
    assert torch.equal(rows, tensor.permute(order))


def test_small_tensors_are_copied_by_way_of_memory_that_nobody_else_sees():
    """An outer optimizer keeps what was gathered, and a first copy may be made in inference mode."""
    weight, bias = torch.nn.Parameter(torch.ones(2, 3).t()), torch.nn.Parameter(torch.zeros(2))
    bucket = Bucket(0, [Item("a", weight), Item("b", bias)])
    with torch.inference_mode():
        bucket.gather(bucket.empty())
    first = bucket.gather(bucket.empty())
    bucket.scatter(torch.arange(8.0, dtype=torch.float64))
    assert torch.equal(first, torch.tensor([1.0] * 6 + [0.0] * 2))
    assert torch.equal(bucket.gather(bucket.empty()), torch.arange(8.0))
    assert torch.equal(weight, torch.arange(6.0).view(2, 3).t())
    assert weight.is_leaf
    assert not first.requires_grad


@pytest.mark.parametrize("numel", [3, 40_000], ids=["small", "large"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wider", [torch.float32, torch.float64])
def test_differences_and_sums_are_those_of_each_tensor(numel, dtype, wider):
    draw = torch.Generator().manual_seed(0)
    held = [torch.randn(2, numel, generator=draw).to(dtype) for _ in range(3)]
    held = [held[0].t(), held[1][:, ::2], torch.nn.Parameter(held[2])]
    bucket = Bucket(0, [Item(name, tensor) for name, tensor in zip("abc", held, strict=True)])
    flat = torch.randn(bucket.numel, generator=draw, dtype=wider)
    before = [tensor.detach().clone() for tensor in held]
    for given in (flat, flat.to(dtype), torch.stack([flat, flat], dim=1)[:, 1]):
        difference = bucket.subtract_from(given, torch.empty(bucket.numel, dtype=wider))
        bucket.add(given)
        for began, now, moved, by in zip(
            before, held, bucket.views(difference), bucket.views(given), strict=True
        ):
            assert torch.equal(moved, (by.to(dtype) - began).to(wider))
            assert torch.equal(now, began.clone().add_(by))
            now.data.copy_(began)
    assert held[2].is_leaf
    assert not difference.requires_grad


def test_small_tensors_are_subtracted_and_added_without_views_made_anew(monkeypatch):
    """Which take several times as long as the sums."""
    bucket = Bucket(0, [Item(name, torch.ones(3)) for name in "abc"])
    bucket.gather(bucket.empty())
    monkeypatch.delattr(Bucket, "views")
    assert torch.equal(bucket.subtract_from(torch.full((9,), 3.0), torch.empty(9)), torch.full((9,), 2.0))
    bucket.add(torch.full((9,), 4.0))
    assert torch.equal(bucket.gather(bucket.empty()), torch.full((9,), 5.0))
