"""The size of several tensors together, and of the rows of one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from relaxcomm.tensors.precision import HALVES

_LEAST, _MOST = 1e-15, 1e15  # norms between which no square that matters leaves float32's range


def squared_norm(tensors: Sequence[Tensor]) -> float:
    """`sum_i ||x_i||^2`, also where the squares of an entry leave its type's range; on a GPU the host waits.

    Example:
        >>> import torch
        >>> from relaxcomm.tensors.norms import squared_norm
        >>> round(squared_norm([torch.full((2,), 1e30), torch.zeros(3)]) / 1e60, 3)  # no overflow
        2.0
    """
    if not tensors:
        return 0.0
    dtypes = {tensor.dtype for tensor in tensors}
    wide = None
    if not dtypes.isdisjoint(HALVES):  # one type for all, which may be shorter than no entry's
        wide = torch.float64 if torch.float64 in dtypes else torch.float32
    norms = torch.stack(list(torch._foreach_norm(list(tensors), dtype=wide))).double()
    total = float(norms.square().sum())
    if math.isfinite(total):
        return total
    return float(sum(torch.linalg.vector_norm(one, dtype=torch.float64).square() for one in tensors))


def norms(tensors: Sequence[Tensor]) -> Tensor:
    """The norm of each tensor of one type, `[len(tensors)]`, as `row_norms` has it of a single row.

    Example:
        >>> import torch
        >>> from relaxcomm.tensors.norms import norms
        >>> norms([torch.tensor([3.0, 4.0]), torch.full((4,), 1e30)])
        tensor([5.0000e+00, 2.0000e+30])
    """

    def in_type(dtype: torch.dtype | None) -> Tensor:
        return torch.stack(list(torch._foreach_norm(list(tensors), dtype=dtype))).to(tensors[0].dtype)

    if tensors[0].device.type != "cpu":
        return in_type(torch.float64)
    found = in_type(None)
    is_near = (found > _LEAST) & (found < _MOST)
    return found if bool(is_near.all()) else torch.where(is_near, found, in_type(torch.float64))


def row_norms(rows: Tensor) -> Tensor:
    """The norm of each row; squares of very large and very small entries need a wide range."""
    if rows.device.type == "cpu":
        found: Tensor = torch.linalg.vector_norm(rows, dim=1)  # six times as fast
        if bool(((found > _LEAST) & (found < _MOST)).all()):
            return found
    return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).to(rows.dtype)  # type: ignore[no-any-return]  # torch's
