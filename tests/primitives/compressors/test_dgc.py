"""The sampled threshold without a wait of the host: what is sent is what a CPU sends."""

from __future__ import annotations

import pytest
import torch

from relaxcomm.kernels.dispatch import implementation
from relaxcomm.plugin import Sparse
from relaxcomm.primitives import dgc
from relaxcomm.primitives.compressors.sparsifier import num_kept
from relaxcomm.testing import PretendGpu

LISTED = 65536


def normal(numel):
    return torch.randn(numel, generator=torch.Generator().manual_seed(numel))


def message_of(compressor, tensor):
    k = num_kept(compressor.density, tensor.numel())
    return compressor.message(tensor, compressor.density, compressor.capacity(k, tensor.numel()))


def sent(compressor, tensor):
    """What arrives, and how many entries were sent."""
    message = message_of(compressor, tensor)
    total = torch.zeros_like(tensor)
    message.add_to(total, 1.0)
    return total, int(message.count)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("numel", "density", "sample"),
    [(1, 0.5, 0.01), (7, 0.3, 1.0), (1000, 0.1, 0.01), (1000, 1.0, 0.1), (50_001, 0.01, 0.01)],
)
def test_a_gpu_sends_what_a_cpu_sends(numel, density, sample, dtype):
    compressor, x = dgc(density=density, sample=sample), normal(numel).to(dtype)
    expected, expected_count = sent(compressor, x)
    with implementation("torch"):
        found, count = sent(compressor, x)
    assert count == expected_count > 0
    # Of entries that are rounded to one size any may be the last.
    assert torch.equal(found.abs().sort().values, expected.abs().sort().values)
    if dtype == torch.float32:
        assert torch.equal(found, expected)


def test_few_entries_above_a_threshold_are_all_that_is_sent():
    x = torch.zeros(1000)
    x[[100, 501]] = torch.tensor([2.0, -3.0])  # one of them is in the sample
    with implementation("torch"):
        found, count = sent(dgc(density=0.1, sample=0.01), x)
    assert torch.equal(found, x)
    assert count == 2


def test_of_far_too_many_the_first_are_looked_through():
    """The sample shows nothing of what the other entries are."""
    x = normal(3 * LISTED).abs() + 1
    x[::100] = 0.5
    with implementation("torch"):
        found, count = sent(dgc(density=0.01), x)
    kept = num_kept(0.01, x.numel())
    exceeding = torch.nonzero(x >= 0.5).view(-1)[:LISTED]
    assert count == kept
    assert torch.equal(found.nonzero().view(-1), exceeding[x[exceeding].topk(kept).indices].sort().values)


@pytest.mark.parametrize("place", [0, 77, 3 * LISTED - 1])
@pytest.mark.parametrize("spoilt", [torch.nan, -torch.inf])
def test_what_is_not_finite_is_not_hidden(place, spoilt):
    x = normal(3 * LISTED).abs() + 1
    x[::100] = 0.5  # all others exceed the threshold
    x[place] = spoilt
    with implementation("torch"):
        found, count = sent(dgc(density=0.01), x)
    assert count == 1
    assert not found[place].isfinite()


@pytest.mark.parametrize("count", [0, 2, 3])
def test_what_is_sent_is_erased_without_a_wait(count):
    values, indices = torch.ones(3), torch.tensor([4, 1, 6], dtype=torch.int32)
    message = Sparse(values, indices, torch.tensor([count], dtype=torch.int32))
    expected = torch.full((7,), torch.nan)
    expected[indices[:count].long()] = 0
    here = torch.full((7,), torch.nan)
    message.erase_in(here)
    torch.testing.assert_close(here, expected, equal_nan=True, rtol=0, atol=0)
    with PretendGpu() as gpu:
        there = torch.full((7,), torch.nan).to("cuda")
        parts = [one.to("cuda") for one in (message.values, message.indices, message.count)]
        gpu.work.clear()
        Sparse(*parts).erase_in(there)
        assert gpu.work.waits == []
        torch.testing.assert_close(there.cpu(), expected, equal_nan=True, rtol=0, atol=0)
