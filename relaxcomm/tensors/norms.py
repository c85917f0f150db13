"""The size of several tensors together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_HALVES = (torch.float16, torch.bfloat16)


def squared_norm(tensors: Sequence[Tensor]) -> float:
    """`sum_i ||x_i||^2`, also where the squares of an entry leave its type's range; on a GPU the host waits.

    Example:
        >>> squared_norm([torch.full((2,), 1e30), torch.zeros(3)])
        2e+60
    """
    if not tensors:
        return 0.0
    wide = torch.float32 if any(tensor.dtype in _HALVES for tensor in tensors) else None
    norms = torch.stack([norm.double() for norm in torch._foreach_norm(list(tensors), dtype=wide)])
    total = float(norms.square().sum())
    if math.isfinite(total):
        return total
    return float(sum(torch.linalg.vector_norm(one, dtype=torch.float64).square() for one in tensors))
