"""Messages of one entry a block, summed with their places packed: bit for bit as one by one."""

from __future__ import annotations

import pytest
import torch

from relaxcomm.kernels import block_sums
from relaxcomm.kernels.dispatch import implementation
from relaxcomm.primitives.compressors.weighted_sum import add_sparse, sum_sparse
from relaxcomm.tensors.bit_packing import pack_places
from relaxcomm.tensors.messages import BlockSparse, largest_block
from relaxcomm.tensors.segments import Blocks
from tests.kernels.host_kernels import needs_numba

pytestmark = needs_numba
WEIGHTS = (0.25, 1 / 3, -1.0, 0.1)
MANY = [0.01 * number for number in range(1, 20)]  # more than one pass takes


def runs(*sizes: tuple[int, int]) -> tuple[Blocks, ...]:
    """Blocks of (number, size), one behind the other."""
    found, start = [], 0
    for num, size in sizes:
        found.append(Blocks(start, num, size, 1))
        start = found[-1].stop
    return tuple(found)


def message(blocks: tuple[Blocks, ...], seed: int, dtype: torch.dtype = torch.float32) -> BlockSparse:
    draw = torch.Generator().manual_seed(seed)
    places = torch.cat([torch.randint(run.size, (run.num,), generator=draw) for run in blocks])
    values = torch.randn(len(places), generator=draw).to(dtype)
    count = torch.tensor([len(places)], dtype=torch.int32)
    return BlockSparse(values, pack_places(places, largest_block(blocks)), count, blocks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "blocks",
    [
        runs((1, 2)),
        runs((5, 16)),
        runs((1001, 16), (1, 7)),
        runs((33, 4), (1, 3), (64, 4), (1, 1)),
        runs((70, 13), (2, 5)),
        runs((40_000, 16), (1, 9)),  # more than are added at once
        runs((1500, 256), (1, 200)),
    ],
    ids=str,
)
def test_the_sum_is_the_same_bit_for_bit(blocks, dtype):
    like = torch.empty(blocks[-1].stop, dtype=dtype)
    parts = [(weight, message(blocks, seed, dtype)) for seed, weight in enumerate(WEIGHTS)]
    with implementation("numba"):
        assert block_sums.takes(like, [one for _, one in parts])
        found = sum_sparse(parts, like)
    with implementation("eager"):
        expected = sum_sparse(parts, like)
    assert torch.equal(found, expected)
    assert found.count_nonzero() > 0


def test_a_message_is_taken_out_of_what_is_there():
    blocks = runs((40_000, 16), (1, 9))
    one = message(blocks, seed=3)
    before = torch.randn(blocks[-1].stop, generator=torch.Generator().manual_seed(4))
    found, expected = before.clone(), before.clone()
    with implementation("numba"):
        assert block_sums.takes(found, [one])
        add_sparse(found, one, -1.0)
    with implementation("eager"):
        add_sparse(expected, one, -1.0)
    assert torch.equal(found, expected)
    assert (found != before).sum() == one.values.numel()


def test_more_messages_than_one_pass_takes():
    blocks = runs((1001, 16), (1, 7))
    parts = [(weight, message(blocks, seed)) for seed, weight in enumerate(MANY)]
    like = torch.empty(blocks[-1].stop)
    with implementation("numba"):
        found = sum_sparse(parts, like)
    with implementation("eager"):
        assert torch.equal(found, sum_sparse(parts, like))


@pytest.mark.parametrize(
    "blocks",
    [runs((4, 8)), runs((4, 4096)), (Blocks(0, 4, 16, 2),)],
    ids=["three bits", "two bytes", "two kept"],
)
def test_what_is_not_taken_is_summed_all_the_same(blocks):
    capacity = sum(run.num * run.num_kept for run in blocks)
    one = message(runs((capacity, blocks[0].size)), seed=1)
    one = BlockSparse(one.values, one.indices, one.count, blocks)
    like = torch.empty(blocks[-1].stop)
    with implementation("numba"):
        assert not block_sums.takes(like, [one])
        found = sum_sparse([(0.5, one)], like)
    with implementation("eager"):
        assert torch.equal(found, sum_sparse([(0.5, one)], like))


def test_values_of_another_type_are_rounded_first():
    one = message(runs((9, 16)), seed=1, dtype=torch.float64)
    with implementation("numba"):
        assert not block_sums.takes(torch.empty(144), [one])
        found = sum_sparse([(0.1, one)], torch.empty(144))
    with implementation("eager"):
        assert torch.equal(found, sum_sparse([(0.1, one)], torch.empty(144)))


def test_a_place_outside_its_block_is_an_error_and_nothing_is_written_beyond():
    whole = torch.zeros(30)
    total = whole[:20]
    blocks = runs((2, 10))  # four bits could say 15
    packed = pack_places(torch.tensor([1, 15]), 16)
    one = BlockSparse(torch.ones(2), packed, torch.tensor([2], dtype=torch.int32), blocks)
    with implementation("numba"), pytest.raises(IndexError, match="out of range: the block has 10 entries"):
        block_sums.sum_blocks(total, [(1.0, one)])
    assert whole[20:].count_nonzero() == 0


def test_torch_knows_that_the_sum_was_written_to():
    blocks = runs((2, 16))
    total = torch.zeros(32)
    before = total._version
    with implementation("numba"):
        block_sums.sum_blocks(total, [(1.0, message(blocks, seed=0))])
    assert total._version > before
