"""The largest entry of each block: bit for bit, whatever the sizes, and what the entries hold."""

from __future__ import annotations

import pytest
import torch

from relaxcomm.kernels.block_maxima import largest_of_blocks, takes
from relaxcomm.tensors.differences import Difference
from relaxcomm.tensors.segments import Blocks
from tests.kernels.comparing import KINDS, SIZES, host_entries, same_bits
from tests.kernels.host_kernels import needs_numba, on_host


def blocks_of(numel, size):
    whole, rest = divmod(numel, size)
    runs = [Blocks(0, whole, size, 1)] if whole else []
    return tuple(runs + ([Blocks(whole * size, 1, rest, 1)] if rest else []))


def tensor_blocks(size, *ends):
    """Blocks that lie within tensors, of which each is cut on its own."""
    found, start = [], 0
    for end in ends:
        found += [Blocks(start + run.start, run.num, run.size, 1) for run in blocks_of(end - start, size)]
        start = end
    return tuple(found)


def found_in(flat, one, other, blocks, has_terms):
    return *largest_of_blocks(flat, blocks, (one, other) if has_terms else None), flat


@needs_numba
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numel", SIZES)
def test_both_implementations_choose_the_same(numel, kind):
    flat, other = host_entries(numel, kind=kind), host_entries(numel, seed=1)
    for size in (1, 3, 16, 256):
        for has_terms in (False, True):
            found = on_host(found_in, flat, flat, other, blocks_of(numel, size), has_terms)
            assert all(same_bits(one, two) for one, two in zip(*found, strict=True))


@needs_numba
@pytest.mark.parametrize("kind", KINDS)
def test_a_difference_that_is_not_made_is_chosen_from_like_one_that_is(kind):
    flat, one, other = (host_entries(4097, seed=seed, kind=kind) for seed in range(3))
    difference = Difference(flat, (one[:1000], one[1000:1600], one[1600:]), (0, 1000, 1600))
    made = difference.write_to(torch.empty(4097))
    for blocks in (blocks_of(4097, 16), blocks_of(4097, 50), tensor_blocks(16, 1000, 1600, 4097)):
        found = on_host(found_in, torch.empty(4097), difference, other, blocks, True)
        plain = on_host(found_in, torch.empty(4097), made, other, blocks, True)
        for one_found in (*found, plain[0]):
            assert all(same_bits(*both) for both in zip(one_found, plain[1], strict=True))


def test_what_is_chosen_is_the_largest_to_the_last_bits():
    flat = host_entries(4097)
    values, places = largest_of_blocks(flat, blocks_of(4097, 16))
    rows = flat[:4096].view(-1, 16)
    assert torch.equal(values[:-1], rows.gather(1, places[:-1].long().view(-1, 1)).view(-1))
    torch.testing.assert_close(values[:-1].abs(), rows.abs().amax(1), rtol=2**-19, atol=0)
    assert values[-1] == flat[-1]


def test_other_types_and_larger_blocks_are_for_others():
    flat = torch.zeros(512)
    assert takes(flat, 1, 256)
    assert not takes(flat, 1, 257)
    assert not takes(flat.double(), 1, 16)
    assert not takes(flat.bfloat16(), 1, 16)
