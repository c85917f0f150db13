"""The largest entries of blocks of several sizes: those that a sort finds, in both implementations."""

from __future__ import annotations

import numpy as np
import pytest

from relaxcomm.kernels.block_selection import largest_in_blocks
from relaxcomm.kernels.dispatch import implementation
from relaxcomm.tensors.messages import block_starts
from relaxcomm.tensors.segments import Blocks
from tests.kernels.comparing import DTYPES, KINDS, both, entries, same_bits

RUNS = (Blocks(0, 5, 100, 7), Blocks(500, 1, 3, 3), Blocks(503, 30, 16, 1), Blocks(983, 1, 42, 20))
NUMEL = 1025


def by_sorting(flat):
    """Places of the largest, of equal ones the first, by a stable sort of each block."""
    sizes = flat.float().abs().nan_to_num(nan=np.inf, posinf=3e38).numpy()
    return [
        place
        for run in RUNS
        for start in range(run.start, run.stop, run.size)
        for place in sorted(np.argsort(-sizes[start : start + run.size], kind="stable")[: run.num_kept])
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_those_that_a_sort_finds(kind):
    flat = entries(NUMEL, kind=kind)
    with implementation("torch"):
        values, places = largest_in_blocks(flat, RUNS)
    expected = by_sorting(flat.cpu())
    assert places.tolist() == expected
    indices = block_starts(RUNS, places.device) + places
    assert same_bits(values, flat[indices.long()])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_both_implementations_choose_the_same(kind, dtype, kernels):
    found, expected = both(largest_in_blocks, entries(NUMEL, dtype, kind), RUNS)
    assert all(same_bits(one, other) for one, other in zip(found, expected, strict=True))
