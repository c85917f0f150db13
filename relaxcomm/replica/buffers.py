"""Which of a model's buffers are copied from rank to rank, and which are averaged."""

from __future__ import annotations

import torch
from torch import Tensor


def can_be_copied(buffer: Tensor) -> bool:
    """Whether a buffer has memory of its own for each entry, which a sparse or expanded one has not."""
    if buffer.layout != torch.strided:
        return False
    return not any(
        stride == 0 and size > 1 for stride, size in zip(buffer.stride(), buffer.shape, strict=True)
    )


def has_means(buffer: Tensor) -> bool:
    """Whether a buffer is of a type whose values have means, which entries of 8 bits have not."""
    return buffer.is_floating_point() and buffer.itemsize > 1 and can_be_copied(buffer)


def is_statistic(buffer: Tensor) -> bool:
    """Whether a buffer that has means may be a statistic, as BatchNorm has, by what it holds now.

    A mean would spoil a mask of -inf, or of the least number that there is. A least or largest value that was
    seen may begin so, and become a statistic later.
    """
    return bool((buffer.abs() <= torch.finfo(buffer.dtype).max / 4).all())
