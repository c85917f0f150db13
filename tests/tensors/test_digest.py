"""Whether tensors are the same on several ranks."""

from __future__ import annotations

import pytest
import torch

from relaxcomm.tensors.digest import checksum, digest
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
    assert abs(checksum(values).item()) <= 2**51
    assert checksum(torch.zeros(3)) == checksum(torch.empty(0)) == 0 != checksum(-torch.zeros(3))


def test_views_that_are_conjugate_or_negative_have_the_bits_of_what_they_stand_for():
    x = torch.randn(300, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    conjugate, negative = x.conj(), x.conj().imag
    assert conjugate.is_conj()
    assert negative.is_neg()
    for view in (conjugate, negative):
        assert digest([view]) == digest([torch.empty_like(view).copy_(view)]) != digest([-view])
        assert checksum(view) == checksum(torch.empty_like(view).copy_(view))


def alike(x):
    """Tensors that differ from x, and from each other, in a regular way."""
    half = len(x) // 2
    yield from (x * by for by in (1, 2, 0.5, 4, -1, 2**16, 2**-64))
    yield from (torch.full_like(x, value) for value in (0, 1, -1, 0.1, 0.2, 1.5, 2, 4, 6))
    yield torch.nextafter(x, torch.full_like(x, torch.inf))
    yield x.roll(half)  # rows that change places, where there are several
    yield x.flip(0)
    yield torch.cat([x[half:].flip(0), x[:half]])
    yield x.view(2, half).t().flatten()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("power", [1, 5, 10, 13, 14, 15, 16, 17, 20])
def test_numbers_that_differ_in_a_regular_way_differ(power, kind):
    x = torch.randn(2**power, generator=torch.Generator().manual_seed(power)).to(kind)
    different = {digest([one]) for one in alike(x)}
    assert len({checksum(one).item() for one in alike(x)}) == len(different)


def test_sums_of_weights_are_multiples_of_no_large_power_of_two():
    """Else what all entries differ by, times such a sum, may vanish: a sign is the highest of 32 bits."""
    for power in range(21):
        signs = torch.full((2**power,), -0.0)
        assert checksum(signs) != 0
        steps = (torch.ones(2**power, dtype=torch.int32) << shift for shift in range(32))
        assert len({checksum(one).item() for one in steps}) == 32


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.uint8, torch.float64])
@pytest.mark.parametrize("numel", [0, 1, 2**14, 2**14 + 1, 2**16 + 3, 2**22, 2**23 + 5])
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
