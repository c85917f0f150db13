"""Views of a flat buffer, one for each tensor that has a place in it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from relaxcomm.tensors.memory_order import Strides


def flat_views(flat: Tensor, places: Iterable[tuple[int, torch.Size, Strides]]) -> list[Tensor]:
    """One view for each place.

    Args:
        flat: `[numel]`, in memory of any stride.
        places: where a tensor begins, its shape, and its strides there; None for those of a contiguous one.

    Example:
        >>> import torch
        >>> matrix, column = torch.Size([2, 2]), torch.Size([2])
        >>> flat_views(torch.arange(6), [(0, matrix, [1, 2]), (4, column, None)])
        [tensor([[0, 2],
                [1, 3]]), tensor([4, 5])]
    """
    result = []
    begin, step = flat.storage_offset(), flat.stride(-1)
    for offset, shape, strides in places:
        if strides is None:
            view = flat[offset : offset + shape.numel()].view(shape)
        else:
            there = strides if step == 1 else [step * one for one in strides]  # a column of a matrix
            view = flat.as_strided(shape, there, begin + step * offset)
        result.append(view)
    return result
