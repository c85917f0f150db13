"""The largest entries of every block of a tensor on a GPU, of blocks of any sizes at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from relaxcomm.kernels.dispatch import on_its_device, uses_triton
from relaxcomm.kernels.magnitudes import magnitude_keys
from relaxcomm.tensors.host_copies import kept_per_stream
from relaxcomm.tensors.messages import block_starts, largest_block
from relaxcomm.tensors.segments import Blocks

LONGEST_BLOCK = 8192  # that a kernel holds as a whole


class BlockTable(NamedTuple):
    """Where blocks lie, and where what is chosen of them goes.

    Args:
        starts: `[count]` int64, of each block.
        sizes: `[count]` int64, its entries.
        kept: `[count]` int64, how many are chosen.
        ends: `[count]` int64, of all blocks so far.
    """

    starts: Tensor
    sizes: Tensor
    kept: Tensor
    ends: Tensor


def largest_in_blocks(flat: Tensor, blocks: tuple[Blocks, ...]) -> tuple[Tensor, Tensor]:
    """The entries of largest size of each block, ascending by their places; of equal ones the first.

    NaN counts as the largest.

    Args:
        flat: `[numel]`, float32, bfloat16 or float16.
        blocks: of it, at least one.

    Returns: entries `[k]` and their places in the blocks, `[k]` int32.

    Example:
        >>> import torch
        >>> from relaxcomm.tensors.segments import Blocks
        >>> blocks = (Blocks(start=0, num=1, size=4, num_kept=2), Blocks(start=4, num=1, size=2, num_kept=1))
        >>> largest_in_blocks(torch.tensor([1.0, -3.0, 2.0, 2.0, 0.0, -4.0]), blocks)
        (tensor([-3.,  2., -4.]), tensor([1, 2, 1], dtype=torch.int32))
    """
    table, size = block_table(blocks, flat.device), largest_block(blocks)
    if uses_triton(flat) and size <= LONGEST_BLOCK:
        from relaxcomm.kernels.compiled import triton_block_selection

        capacity = sum(run.num * run.num_kept for run in blocks)
        with on_its_device(flat):
            return triton_block_selection.launch(flat, table, size, capacity)
    most = max(run.num_kept for run in blocks)
    columns = torch.arange(size, device=flat.device)
    inside = columns < table.sizes.view(-1, 1)
    entries = (table.starts.view(-1, 1) + columns).clamp_(max=flat.numel() - 1)
    # Unlike each other, so that of equal sizes the first is taken; what is no entry of a block comes last.
    keys = torch.where(inside, magnitude_keys(flat[entries]).long() << 32, -1) - columns
    found = torch.topk(keys, most, dim=1, sorted=True).indices
    counted = torch.arange(most, device=flat.device) < table.kept.view(-1, 1)
    ordered = torch.where(counted, found, size).sort(1).values
    slots = block_slots(blocks, most, flat.device)
    places = ordered.view(-1).index_select(0, slots).int()
    return flat.index_select(0, places + block_starts(blocks, flat.device)), places


@kept_per_stream(256)
def block_table(blocks: tuple[Blocks, ...], device: torch.device) -> BlockTable:
    """The table of all blocks of all runs; made once, without waiting for a copy.

    Example:
        >>> import torch
        >>> from relaxcomm.tensors.segments import Blocks
        >>> block_table((Blocks(0, 2, 4, 1), Blocks(8, 1, 3, 2)), torch.device("cpu")).ends
        tensor([1, 2, 4])
    """
    starts = [torch.arange(run.start, run.stop, run.size, device=device) for run in blocks]
    sizes, kept = (
        torch.cat([torch.full((run.num,), getattr(run, name), device=device) for run in blocks])
        for name in ("size", "num_kept")
    )
    return BlockTable(torch.cat(starts), sizes, kept, kept.cumsum(0))


@kept_per_stream(256)
def block_slots(blocks: tuple[Blocks, ...], most: int, device: torch.device) -> Tensor:
    """Which of `[count, most]` places are those of chosen entries, `[k]` int64.

    Example:
        >>> import torch
        >>> from relaxcomm.tensors.segments import Blocks
        >>> block_slots((Blocks(0, 2, 4, 1), Blocks(8, 1, 3, 2)), 2, torch.device("cpu"))
        tensor([0, 2, 4, 5])
    """
    slots, first = [], 0
    for run in blocks:
        rows = torch.arange(first, first + run.num, device=device).view(-1, 1) * most
        slots.append((rows + torch.arange(run.num_kept, device=device)).view(-1))
        first += run.num
    return torch.cat(slots)
