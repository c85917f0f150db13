"""Weighted sums of messages that have one entry of each block, on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from relaxcomm.kernels.dispatch import uses_numba
from relaxcomm.tensors.bit_packing import digit_bits, place_planes
from relaxcomm.tensors.messages import BlockSparse, Message, largest_block

_TOGETHER = 1 << 12  # entries into which all messages are added, while these are in the nearest cache
_MOST = 8  # messages of one pass, which is compiled for each number of them


def takes(total: Tensor, messages: Sequence[Message]) -> bool:
    """Whether `sum_blocks` takes such messages: 1, 2, 4 or 8 bits a place, and values of the sum's type.

    Example:
        >>> import torch
        >>> takes(torch.zeros(8), [])
        False
    """
    if not uses_numba(total) or not messages:
        return False
    blocks = [one.blocks for one in messages if type(one) is BlockSparse and one.values.dtype == total.dtype]
    if len(blocks) < len(messages) or any(other != blocks[0] for other in blocks):
        return False
    return all(run.num_kept == 1 for run in blocks[0]) and _bits(largest_block(blocks[0])) is not None


def sum_blocks(total: Tensor, parts: Sequence[tuple[float, Message]]) -> None:
    """Write the weighted sum of messages, whose places are unpacked on the way.

    Args:
        total: `[numel]`, written to.
        parts: messages with their weights that `takes` says are taken.

    Raises: IndexError for a place outside its block.

    Example:
        >>> import torch
        >>> from relaxcomm.kernels.dispatch import has_numba
        >>> from relaxcomm.tensors.bit_packing import pack_places
        >>> from relaxcomm.tensors.segments import Blocks
        >>> packed, count = pack_places(torch.tensor([3, 1]), 4), torch.tensor([2], dtype=torch.int32)
        >>> message = BlockSparse(torch.tensor([5.0, 6.0]), packed, count, blocks=(Blocks(0, 2, 4, 1),))
        >>> total = torch.full((8,), 0.5)
        >>> sum_blocks(total, [(2.0, message)]) if has_numba() else message.add_to(total.zero_(), 2.0)
        >>> total
        tensor([ 0.,  0.,  0., 10.,  0., 12.,  0.,  0.])
    """
    _add(total, parts, is_new=True)


def add_blocks(total: Tensor, message: Message, weight: float) -> None:
    """Add a message that `takes` says is taken, times a weight, with arguments as of `sum_blocks`."""
    _add(total, [(weight, message)], is_new=False)


def _add(total: Tensor, parts: Sequence[tuple[float, Message]], *, is_new: bool) -> None:
    from relaxcomm.kernels.compiled import numba_sparse

    torch.autograd.graph.increment_version(total)
    taken = [(weight, message) for weight, message in parts if isinstance(message, BlockSparse)]
    flat = total.numpy()
    for begin in range(0, len(taken), _MOST):
        weights, messages = zip(*taken[begin : begin + _MOST], strict=True)
        scales = total.new_tensor(weights).numpy()
        packed = tuple(one.indices.numpy() for one in messages)
        values = tuple(one.values.numpy() for one in messages)
        first, bits = 0, _bits(largest_block(messages[0].blocks))
        for run in messages[0].blocks:
            here, together = flat[run.start : run.stop], max(1, _TOGETHER // run.size)
            if not numba_sparse.add_in_blocks(
                here, run.size, run.num, packed, bits, first, values, scales, together, is_new and begin == 0
            ):
                raise IndexError(f"a message's place is out of range: the block has {run.size} entries")
            first += run.num


def _bits(size: int) -> int | None:
    """The bits of a place, where all of them lie in one byte; else None."""
    planes = list(place_planes(size))
    if len(planes) != 1:
        return None
    return digit_bits(1 << planes[0][1])
