"""Messages of large entries: bit for bit, whatever the size, type and threshold."""

from __future__ import annotations

import pytest
import torch

from relaxcomm.kernels.compaction import compact
from relaxcomm.kernels.dispatch import implementation
from relaxcomm.kernels.magnitude_statistics import magnitude_statistics
from relaxcomm.kernels.magnitudes import LARGEST_FINITE
from tests.kernels.comparing import DTYPES, SIZES, both, entries, same_bits
from tests.kernels.interpreter import DEVICE


def compacted(tensor, key, capacity, dtype, subtract):
    with implementation("torch"):
        largest = magnitude_statistics(tensor.to(dtype)).largest
    threshold = torch.tensor([key], dtype=torch.int32, device=DEVICE)
    return *compact(tensor, threshold, largest, capacity, dtype=dtype, subtract=subtract), tensor


def key_of(size):
    return torch.tensor([size]).view(torch.int32).item()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("numel", SIZES)
def test_both_implementations_send_the_same(numel, dtype, kernels):
    for size, capacity in ((1.8, numel), (1.8, -(-numel // 50)), (0.0, numel), (9.0, 1)):
        for subtract in (True, False):
            found = both(compacted, entries(numel), key_of(size), capacity, dtype, subtract)
            assert all(same_bits(one, other) for one, other in zip(*found, strict=True))


def test_the_last_part_of_the_longest_message_is_cleared(kernels):
    """Of which no more lies in memory: pointers are set as far back as it begins."""
    import triton

    from relaxcomm.kernels.compiled.triton_compaction import _clear

    @triton.jit
    def clear_last(values_ptr, indices_ptr, before, capacity, parts, CLEAR: triton.language.constexpr):
        CLEAR(values_ptr - before, indices_ptr - before, capacity, parts - 1, parts, 1024)

    capacity, parts, size = 2**31 - 1, 2**20, 2**11
    values, indices = torch.ones(size, device=DEVICE), torch.ones(size, dtype=torch.int32, device=DEVICE)
    clear_last[(1,)](values, indices, (parts - 1) * size, capacity, parts, CLEAR=_clear)
    assert values.nonzero().tolist() == indices.nonzero().tolist() == [[size - 1]]


@pytest.mark.parametrize("kind", ["nan", "infinite"])
def test_both_show_what_is_not_finite(kind, kernels):
    found, expected = both(compacted, entries(1025, kind=kind), LARGEST_FINITE, 3, torch.float32, True)
    assert all(same_bits(one, other) for one, other in zip(found, expected, strict=True))
    assert expected[2].item() == (1 if kind == "nan" else 2)
    assert not torch.isfinite(expected[0][0])


def test_what_does_not_fit_stays_and_nothing_is_lost():
    x = entries(1000)
    with implementation("torch"):
        values, indices, count, left = compacted(x.clone(), key_of(1.0), 20, torch.float32, True)
    expected = (x.abs() > 1.0).nonzero().flatten()[:20]
    assert torch.equal(indices.long(), expected)
    assert count.item() == 20
    assert torch.equal(left.index_add(0, indices.long(), values), x)


def test_what_a_short_type_rounds_off_stays():
    x = entries(1000)
    with implementation("torch"):
        _, indices, count, left = compacted(x.clone(), key_of(2.0), 100, torch.bfloat16, True)
    sent = indices[: count.item()].long()
    assert torch.equal(left[sent], x[sent] - x[sent].bfloat16().float())
    assert left[sent].any()
