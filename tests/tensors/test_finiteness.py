"""What is not finite is found in numbers of each type, and in tensors that hold none of it never."""

from __future__ import annotations

import pytest
import torch

from relaxcomm.tensors.finiteness import finite_flags, is_finite

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
