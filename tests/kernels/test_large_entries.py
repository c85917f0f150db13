"""Entries above a threshold: the same ones, bit for bit, from Numba, numpy and torch."""

from __future__ import annotations

import pytest
import torch

from relaxcomm.kernels.large_entries import large_entries
from tests.kernels.comparing import KINDS, host_entries, same_bits
from tests.kernels.host_kernels import needs_numba, on_host

SIZES = (1, 15, 16, 31, 4097)
THRESHOLDS = (0.0, 0.5, 2.5, 1e-39)


def made(flat, one, other, factor, threshold):
    return *large_entries(flat, threshold, 100, (one, other, factor)), flat


@needs_numba
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numel", SIZES)
def test_both_implementations_find_the_same(numel, kind):
    flat = host_entries(numel, kind=kind)
    for threshold in THRESHOLDS:
        compiled, eager = on_host(large_entries, flat, threshold, 7)
        assert all(same_bits(one, two) for one, two in zip(compiled, eager, strict=True))


@needs_numba
@pytest.mark.parametrize("factor", [1.0, 0.9])
@pytest.mark.parametrize("kind", KINDS)
def test_both_make_the_same_sum_on_the_way(kind, factor):
    one, other = host_entries(4097, kind=kind), host_entries(4097, seed=1)
    for threshold in THRESHOLDS:
        compiled, eager = on_host(made, torch.empty(4097), one, other, factor, threshold)
        assert all(same_bits(one, two) for one, two in zip(compiled, eager, strict=True))
        assert same_bits(eager[2], torch.add(one, other, alpha=factor))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("few", [True, False])
def test_those_are_found_that_are_larger(dtype, few):
    flat = host_entries(70_000).to(dtype)
    flat[3] = 1.5
    places, sizes = large_entries(flat, 1.5, 10, few=few)
    wanted = torch.nonzero(flat.abs() > 1.5).view(-1)
    assert torch.equal(places, wanted + 10)
    assert torch.equal(sizes, flat[wanted].abs())
    assert 13 not in places
