"""In which order the entries of a tensor lie in memory, for what reads them as they lie there."""

from __future__ import annotations

import torch
from torch import Tensor

from relaxcomm.tensors.buckets import are_dense


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
    if not are_dense(tensor.stride(), tensor.shape):
        return values
    return torch.empty_like(tensor, dtype=values.dtype, device=values.device).copy_(values)
