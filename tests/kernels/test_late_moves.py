"""Late results move parameters by the same bits, whoever adds them."""

import pytest
import torch

from relaxcomm.kernels.dispatch import has_numba, implementation
from relaxcomm.kernels.late_moves import add_difference
from relaxcomm.tensors import buckets
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item

NAMES = ["eager", pytest.param("numba", marks=pytest.mark.skipif(not has_numba(), reason="no Numba"))]


def tensors(dtype: torch.dtype) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    made = [torch.randn(shape, generator=draw) for shape in ((3,), (200, 100), (2, 3, 4, 5), (0,), (16_400,))]
    made[2] = made[2].to(memory_format=torch.channels_last)
    return [one.to(dtype) for one in made]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_tensors_move_by_the_difference(name, dtype):
    held = tensors(dtype)
    bucket = Bucket(0, [Item(str(number), one) for number, one in enumerate(held)])
    before = bucket.gather(bucket.empty())
    flat, other = torch.randn(bucket.numel).to(dtype), torch.randn(bucket.numel).to(dtype)
    other[::2] = before[::2]  # these have not moved since
    expected = flat - (other - before)
    versions = [one._version for one in held if one.numel()]
    with implementation(name):
        add_difference(bucket, flat, other.clone())
    found = bucket.gather(bucket.empty())
    assert torch.equal(found, expected)
    assert torch.equal(found[::2], flat[::2])
    # autograd must see that they were written to
    assert all(one._version > old for one, old in zip(filter(torch.numel, held), versions, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_tensors_with_gaps_and_values_of_a_longer_type(name):
    gaps, short = torch.zeros(6)[::2], torch.ones(2, dtype=torch.bfloat16)
    with implementation(name):
        add_difference(Bucket(0, [Item("gaps", gaps)]), torch.tensor([1.0, 2.0, 3.0]), torch.ones(3))
        add_difference(Bucket(0, [Item("short", short)]), torch.tensor([2.0, 4.0]), torch.ones(2).bfloat16())
    assert gaps.tolist() == [0, 1, 2]
    assert short.tolist() == [2, 4]


@pytest.mark.parametrize("name", NAMES)
def test_tensors_that_have_been_arranged_anew_in_memory(name):
    """As by `model.to(memory_format=torch.channels_last)` after attach."""
    weight = torch.nn.Parameter(torch.zeros(20, 10, 10, 10))
    bucket = Bucket(0, [Item("weight", weight)])
    weight.data = weight.data.to(memory_format=torch.channels_last)
    flat = torch.randn(bucket.numel)
    with implementation(name):
        add_difference(bucket, flat, torch.zeros(bucket.numel))
    assert torch.equal(weight.detach(), flat.view(weight.shape))


def test_small_tensors_are_looked_at_by_views_that_are_made_once(monkeypatch):
    held = [torch.full((size,), 2.0) for size in (3, 1, 4)]
    bucket = Bucket(0, [Item(str(number), one) for number, one in enumerate(held)])
    flat, other = torch.full((8,), 5.0), torch.ones(8)
    add_difference(bucket, flat, other.clone())
    monkeypatch.setattr(buckets, "flat_views", None)
    add_difference(bucket, flat, other)
    assert all((one == 10).all() for one in held)
