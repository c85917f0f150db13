"""The entries of a tensor that are larger than a threshold, on any device."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from relaxcomm.kernels.dispatch import uses_numba
from relaxcomm.tensors import buffer_pool

Terms: TypeAlias = tuple[Tensor, Tensor, float]
"""x, e and a factor, of `x + factor e`."""
_NUMPY = (torch.float32, torch.float64)  # which it compares several times as fast as torch


def large_entries(
    flat: Tensor, threshold: float, start: int = 0, terms: Terms | None = None, *, few: bool = True
) -> tuple[Tensor, Tensor]:
    """The entries with `|x| > threshold`, in order.

    Args:
        flat: `[numel]`.
        threshold: 0 or more.
        start: the number of the first entry.
        terms: of the sum that `flat` becomes first.
        few: whether one entry in thirty or fewer is expected, which a compiled loop finds faster.

    Returns: their numbers `[n]`, int64, and their sizes `[n]`.

    Example:
        >>> import torch
        >>> large_entries(torch.tensor([1.0, -3.0, 2.0, 5.0]), threshold=2.0)
        (tensor([1, 3]), tensor([3., 5.]))
    """
    is_compiled = few and flat.dtype == torch.float32 and uses_numba(flat)
    if terms is not None and not (is_compiled and terms[2] == 1.0):
        torch.add(terms[0], terms[1], alpha=terms[2], out=flat)  # rounds a product and a sum at once
        terms = None
    if is_compiled:
        return _find_compiled(flat, threshold, start, terms)
    if flat.device.type != "cpu":
        sizes = flat.abs()
        places = torch.nonzero(sizes > threshold).view(-1)
        return places + start, sizes.index_select(0, places)
    sizes = torch.abs(flat, out=buffer_pool.empty_like(flat))
    limit = torch.tensor(threshold, dtype=flat.dtype)
    is_above = sizes.numpy() > limit.numpy() if flat.dtype in _NUMPY else (sizes > limit).numpy()
    places = torch.from_numpy(np.flatnonzero(is_above))
    found = sizes.index_select(0, places)
    return places.add_(start), found


def _find_compiled(flat: Tensor, threshold: float, start: int, terms: Terms | None) -> tuple[Tensor, Tensor]:
    from relaxcomm.kernels.compiled import numba_sparse

    room = flat.numel() + 1  # one is written behind the last
    places = buffer_pool.empty(room, torch.int64, flat.device)
    sizes = buffer_pool.empty(room, flat.dtype, flat.device)
    limit = np.float32(threshold)
    if terms is not None:
        torch.autograd.graph.increment_version(flat)
    num = numba_sparse.find_large(
        *((None, None) if terms is None else (terms[0].numpy(), terms[1].numpy())),
        *(flat.numpy(), flat.view(torch.int32).numpy(), limit, limit.view(np.int32), start),
        *(places.numpy(), sizes.numpy()),
    )
    return places[:num].clone(), sizes[:num].clone()
