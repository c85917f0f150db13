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


def can_be_averaged(buffer: Tensor) -> bool:
    """Whether a buffer may be a statistic, as BatchNorm has, and not a mask of -inf or of the least number
    that there is, which a mean would spoil; entries of 8 bits have none.
    """
    if not (buffer.is_floating_point() and buffer.itemsize > 1 and can_be_copied(buffer)):
        return False
    return bool((buffer.abs() <= torch.finfo(buffer.dtype).max / 4).all())
