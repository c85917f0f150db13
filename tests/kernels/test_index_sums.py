"""What is sent of a range, added to a tensor: bit for bit, whatever the types, and never outside."""

from __future__ import annotations

import pytest
import torch

from relaxcomm.kernels.dispatch import implementation
from relaxcomm.kernels.index_sums import add_range
from relaxcomm.tensors.messages.sparse_message import Range
from tests.kernels.comparing import SIZES, host_entries, same_bits
from tests.kernels.host_kernels import needs_numba, on_host

WEIGHTS = (0.25, 1 / 3, -1.0, 0.1)


def summed(total, places, values, offsets, weight):
    add_range(total, Range(3, total.numel(), places, values, offsets), weight)
    return total


@needs_numba
@pytest.mark.parametrize("values", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("numel", SIZES)
def test_both_implementations_add_the_same(numel, dtype, values):
    draw, sent = torch.Generator().manual_seed(numel), host_entries(numel, values, seed=2)
    for kind in (torch.int32, torch.int64):
        places = torch.randint(numel, (numel,), generator=draw).to(kind)  # some come twice
        for weight in WEIGHTS:
            assert same_bits(*on_host(summed, host_entries(numel + 3, dtype), places, sent, None, weight))


@needs_numba
@pytest.mark.parametrize("numel", SIZES)
def test_both_count_places_from_offsets(numel):
    offsets = torch.arange(0, 5 * numel, 5, dtype=torch.int32)
    places = torch.randint(5, (numel,), generator=torch.Generator().manual_seed(3)).to(torch.uint8)
    found = on_host(summed, host_entries(5 * numel + 3), places, host_entries(numel), offsets, 0.1)
    assert same_bits(*found)
    assert not torch.equal(found[0], host_entries(5 * numel + 3))


@needs_numba
@pytest.mark.parametrize("name", ["numba", "eager"])
@pytest.mark.parametrize("place", [5, -6, 2**31 - 1])
def test_a_place_outside_the_range_is_an_error_and_nothing_is_written_there(name, place):
    whole = torch.zeros(20)
    sent = Range(0, 5, torch.tensor([1, place], dtype=torch.int32), torch.ones(2))
    with implementation(name), pytest.raises(IndexError, match="out of range"):
        add_range(whole[5:10], sent, 1.0)
    assert whole.sum() <= 1


@needs_numba
def test_torch_knows_that_a_tensor_was_written_to():
    total = torch.zeros(3)
    before = total._version
    with implementation("numba"):
        add_range(total, Range(0, 3, torch.tensor([1]), torch.ones(1)), 1.0)
    assert total._version > before
