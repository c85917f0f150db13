"""Weighted sums of messages whose blocks are quantised, on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from relaxcomm.kernels.dispatch import uses_numba
from relaxcomm.tensors.bit_packing import digit_bits, unpack_codes
from relaxcomm.tensors.messages import Message, Quantized

_MOST = 8  # messages of one pass, which is compiled for each number of them


def takes(total: Tensor, messages: Sequence[Message]) -> bool:
    """Whether `sum_levels_of_blocks` takes such messages: quantised alike, in blocks, all in float32.

    Example:
        >>> import torch
        >>> takes(torch.zeros(8), [])
        False
    """
    if not messages or total.dtype != torch.float32 or not uses_numba(total):
        return False
    alike = [
        (one.segments, one.num_codes, one.lows.numel())
        for one in messages
        if isinstance(one, Quantized) and one.steps.dtype == total.dtype
    ]
    if len(alike) < len(messages) or any(other != alike[0] for other in alike):
        return False
    return alike[0][0].block_size is not None


def sum_levels_of_blocks(total: Tensor, parts: Sequence[tuple[float, Message]]) -> None:
    """Write the weighted sum of messages.

    Args:
        total: `[numel]`, written to.
        parts: messages with their weights that `takes` says are taken.

    Example:
        >>> import torch
        >>> from relaxcomm.kernels.dispatch import has_numba
        >>> from relaxcomm.tensors.bit_packing import pack_codes
        >>> from relaxcomm.tensors.segments import Segments
        >>> codes = pack_codes(torch.tensor([0, 3, 1, 2], dtype=torch.uint8), num_codes=4)
        >>> steps, lows = torch.tensor([1.0, 0.5]), torch.tensor([0.0, 10.0])
        >>> message = Quantized(codes, steps, lows, num_codes=4, segments=Segments(4, block_size=2))
        >>> total = torch.full((4,), 7.0)
        >>> sum_levels_of_blocks(total, [(2.0, message)]) if has_numba() else message.write_to(total)
        >>> total / 2 if has_numba() else total
        tensor([ 0.0000,  3.0000, 10.5000, 11.0000])
    """
    from relaxcomm.kernels.compiled import numba_levels

    torch.autograd.graph.increment_version(total)
    taken = [(weight, message) for weight, message in parts if isinstance(message, Quantized)]
    first = taken[0][1]
    has_lows = first.lows.numel() > 0
    bits, numel = digit_bits(first.num_codes), total.numel()
    middle = np.float32(0 if has_lows else (first.num_codes - 1) / 2)
    for begin in range(0, len(taken), _MOST):
        weights, messages = zip(*taken[begin : begin + _MOST], strict=True)
        numba_levels.add_levels(
            *(total.numpy(), first.segments.block_size, bits or 8),
            tuple(
                (one.codes if bits else unpack_codes(one.codes, numel, one.num_codes)).numpy()
                for one in messages
            ),
            tuple(one.steps.numpy() for one in messages),
            tuple(one.lows.numpy() for one in messages) if has_lows else None,
            *(middle, total.new_tensor(weights).numpy(), begin == 0),
        )
