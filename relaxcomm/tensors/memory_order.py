"""In which order the entries of a tensor lie in memory, for what reads them as they lie there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Strides: TypeAlias = tuple[int, ...] | None
"""The strides of a dense tensor, without gaps or overlap (channels-last is, a slice is not); else None."""


def are_dense(strides: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether strides fill the memory of a tensor without gaps or overlap."""
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def dense_strides(tensor: Tensor) -> Strides:
    """The strides of a tensor, if they are dense."""
    return tensor.stride() if are_dense(tensor.stride(), tensor.shape) else None


def shape_in_memory(shape: torch.Size, strides: Strides) -> torch.Size:
    """The sizes from the slowest dimension to the fastest: a column-major matrix is its transpose."""
    if strides is None:
        return shape
    order = sorted(range(len(shape)), key=lambda dimension: -strides[dimension])
    return torch.Size(shape[dimension] for dimension in order)


def laid_out_like(tensor: Tensor, values: Tensor) -> Tensor:
    """The same values with the strides of a tensor of that shape; a copy where they have others.

    Fused optimizers read gradients and moments as they lie in memory, whatever their strides say.

    Example:
        >>> import torch
        >>> from relaxcomm.tensors.memory_order import laid_out_like
        >>> laid_out_like(torch.zeros(3, 2).t(), torch.ones(2, 3)).stride()
        (1, 2)
    """
    is_plain = type(values) is Tensor and values.layout == torch.strided  # a quantised one has no such memory
    if not is_plain or values.shape != tensor.shape or values.stride() == tensor.stride():
        return values
    if dense_strides(tensor) is None:
        return values
    return torch.empty_like(tensor, dtype=values.dtype, device=values.device).copy_(values)
