"""The size of tensors of any types together."""

import pytest
import torch

from relaxcomm.tensors.norms import squared_norm
from relaxcomm.testing import PretendGpu


@pytest.mark.parametrize("short", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_short_and_long_types_together(short, size):
    tensors = [torch.full((9,), size, dtype=short), torch.ones(7), torch.full((4,), 1e30).double()]
    tensors[2] *= size / 1e30
    assert squared_norm(tensors) == pytest.approx(13 * size**2 + 7, rel=1e-2)
    assert squared_norm(tensors[:1]) == pytest.approx(9 * size**2, rel=1e-2)  # overflows


def test_many_tensors_take_a_gpu_no_more_launches_than_few():
    launches = []
    with PretendGpu() as gpu:
        for number in (2, 9):
            tensors = [torch.ones(3, device="cuda") for _ in range(number)]
            gpu.work.clear()
            assert squared_norm(tensors) == pytest.approx(3 * number)
            launches.append(gpu.work.launches)
    assert launches[0] == launches[1]
