"""What is not finite is found in numbers of each type, and in tensors that hold none of it never."""

from __future__ import annotations

import pytest
import torch

from relaxcomm.tensors.finiteness import all_finite, finite_flags, is_finite, which_finite
from relaxcomm.testing import PretendGpu

BAD = [float("nan"), float("inf"), -float("inf")]
TYPES = [torch.float32, torch.bfloat16, torch.float64, torch.complex64]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("bad", BAD)
def test_one_entry_is_enough(dtype, bad):
    good = torch.ones(5, dtype=dtype)
    spoilt = good.clone()
    spoilt[3] = bad
    assert is_finite(good)
    assert not is_finite(spoilt)
    assert finite_flags([good, spoilt, good]).tolist() == [True, False, True]


def test_an_imaginary_part_counts():
    spoilt = torch.tensor([1 + 1j, complex(0, float("nan"))])
    assert not is_finite(spoilt)
    assert finite_flags([spoilt]).tolist() == [False]


def test_counts_and_empty_tensors_are_finite():
    assert is_finite(torch.ones(3, dtype=torch.int64))
    assert finite_flags([torch.ones(3, dtype=torch.int64), torch.empty(0)]).tolist() == [True, True]


@pytest.mark.parametrize(("ask", "waits"), [(all_finite, 0), (which_finite, 1)])
def test_a_gpu_is_asked_once_about_many_tensors(ask, waits):
    found = []
    for number in (2, 9):
        with PretendGpu() as gpu:
            tensors = [torch.ones(3, device="cuda") for _ in range(number)]
            gpu.work.clear()
            ask(tensors)
        found.append((gpu.work.launches, len(gpu.work.waits)))
    assert found[0] == found[1]
    assert found[0][1] == waits


def test_tensors_of_several_types_are_asked_about_together():
    tensors = [torch.ones(3, dtype=dtype) for dtype in TYPES] + [torch.ones(3, dtype=torch.int64)]
    assert all_finite(tensors)
    for tensor in tensors[:-1]:
        tensor[1] = float("nan")
        assert not all_finite(tensors)
        assert which_finite(tensors) == [one is not tensor for one in tensors]
        tensor[1] = 1
