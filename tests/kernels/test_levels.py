"""Levels of which 0 is one, from which small entries are counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from relaxcomm.kernels.dispatch import implementation
from relaxcomm.kernels.levels import inverse_steps, levels_between, moves_to_zero, origins
from relaxcomm.primitives import quantize
from tests.kernels.comparing import host_entries
from tests.kernels.host_kernels import needs_numba
from tests.kernels.interpreter import DEVICE
from tests.primitives.compressors.test_quantize import decoded

ROUNDINGS = pytest.mark.parametrize("rounding", ["nearest", "stochastic"])


def scaled(numel: int) -> torch.Tensor:
    """Blocks of 64 whose ends lie unevenly about 0, or all on one side; a third of the entries is 0."""
    x, blocks = host_entries(numel), torch.arange(numel) // 64
    x = torch.where(x > 0, x, x * torch.rand(numel, generator=torch.Generator().manual_seed(1)))
    x = torch.where(blocks % 5 == 1, -x.abs(), torch.where(blocks % 5 == 2, x.abs(), x)) * 1.7**blocks
    return torch.where(torch.arange(numel) % 3 == 0, 0, x)


@ROUNDINGS
@pytest.mark.parametrize("name", ["eager", pytest.param("numba", marks=needs_numba), "torch", "triton"])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_entries_that_are_zero_stay_so(bits, name, rounding, kernels):
    x = scaled(2000).to(DEVICE if name == "triton" else "cpu")
    with implementation(name), np.errstate(all="ignore"):  # in which the interpreter computes
        for step in range(3):
            found = decoded(quantize(bits=bits, block_size=64, rounding=rounding), x, step=step)
            assert (found[x == 0] == 0).all()


def test_levels_hold_all_entries_and_few_are_spent():
    low, high = -torch.logspace(-6, 6, 1000), torch.logspace(3, -3, 1000)
    for num_codes in (8, 16, 256):
        step, lowest = levels_between(low, high, num_codes)
        torch.testing.assert_close(step, (high - low) / (num_codes - 2))
        slack = 1e-4 * step
        assert (lowest <= low + slack).all()
        assert (lowest + (num_codes - 1) * step >= high - slack).all()
        shift, zero = origins(step, inverse_steps(step), lowest, num_codes)
        assert (shift == 0).all()
        assert (zero * step + lowest == 0).all()


@pytest.mark.parametrize(("low", "high"), [(3.0, 10.0), (-10.0, -3.0), (0.0, 7.0)])
def test_levels_on_one_side_of_zero_are_not_moved(low, high):
    step, lowest = levels_between(torch.tensor([low]), torch.tensor([high]), 8)
    assert (step.item(), lowest.item()) == (1.0, low)


def test_two_bits_are_too_few_for_a_level_at_zero():
    assert not moves_to_zero(4, symmetric=False)
    step, lowest = levels_between(torch.tensor([-1.0]), torch.tensor([2.0]), 4)
    assert (step.item(), lowest.item()) == (1.0, -1.0)
    step, lowest = levels_between(torch.tensor([-1.0]), torch.tensor([0.5]), 4)
    assert (step.item(), lowest.item()) == (0.5, -1.0)


@pytest.mark.parametrize("name", ["eager", "torch"])
def test_small_entries_beside_zero_are_drawn_as_often_as_they_should(name):
    """A millionth of a step off: counted from the lowest level, it would have no bits left."""
    x = torch.full((1 << 22,), 1e-5)
    x[:: 1 << 12], x[1 :: 1 << 12] = -100.0, 154.0
    with implementation(name):
        found = decoded(quantize(bits=8, block_size=1 << 12, rounding="stochastic"), x)
    assert 0.5e-5 < (found[x == 1e-5] == 1).float().mean() < 2e-5
