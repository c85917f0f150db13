"""The size of tensors of any types together."""

import pytest
import torch

from relaxcomm.tensors.norms import squared_norm


@pytest.mark.parametrize("short", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_short_and_long_types_together(short, size):
    tensors = [torch.full((9,), size, dtype=short), torch.ones(7), torch.full((4,), 1e30).double()]
    tensors[2] *= size / 1e30
    assert squared_norm(tensors) == pytest.approx(13 * size**2 + 7, rel=1e-2)
    assert squared_norm(tensors[:1]) == pytest.approx(9 * size**2, rel=1e-2)  # overflows
