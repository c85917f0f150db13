"""Whether tensors are the same on several ranks."""

from __future__ import annotations

import pytest
import torch

from relaxcomm.tensors.digest import checksum
from relaxcomm.testing import PretendGpu

LARGE = 50_000  # entries are looked at in parts


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.uint8, torch.complex128])
@pytest.mark.parametrize("places", [(0, 1), (0, LARGE - 1), (1, 2**14), (2**14, 2**15)])
def test_two_entries_that_change_places_change_a_checksum(places, kind):
    there = torch.arange(LARGE).remainder(251).to(kind)
    swapped = there.clone()
    swapped[list(places)] = there[list(reversed(places))]
    assert there[places[0]] != there[places[1]]
    assert checksum(there) == checksum(there.clone()) != checksum(swapped)


def test_a_checksum_is_of_bits_whatever_the_shape_and_a_number_that_float64_holds():
    values = torch.randn(300, 200, generator=torch.Generator().manual_seed(0))
    assert checksum(values) == checksum(values.flatten()) != checksum(values.t())
    assert 0 <= checksum(values).item() < 2**52
    assert checksum(torch.zeros(3)) == checksum(torch.empty(0)) == 0 != checksum(-torch.zeros(3))


def test_numbers_that_differ_in_their_exponents_alone_differ():
    ones = torch.ones(3, dtype=torch.float64)
    assert len({checksum(ones * by).item() for by in (1, 2, 4, -1)}) == 4


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.uint8, torch.float64])
@pytest.mark.parametrize("numel", [0, 1, 2**14, 2**14 + 1, 2**22, 2**23 + 5])
def test_a_checksum_is_the_same_on_a_gpu_which_takes_few_kernels_and_no_wait(numel, kind):
    values = torch.randint(0, 251, (numel,), generator=torch.Generator().manual_seed(0)).to(kind)
    with PretendGpu() as gpu:
        there = values.pin_memory().to("cuda", non_blocking=True)
        gpu.work.clear()
        found = checksum(there)
        assert not gpu.work.waits
        assert gpu.work.launches <= 8 + 4 * (1 + numel * max(1, kind.itemsize // 4) // 2**22)
        assert found.is_cuda
    assert found == checksum(values)
