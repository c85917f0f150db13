"""Weighted values added to some entries of a tensor, in their order."""

from __future__ import annotations

import torch
from torch import Tensor

from relaxcomm.kernels.dispatch import uses_numba
from relaxcomm.tensors.messages.sparse_message import Range


def add_range(total: Tensor, sent: Range, weight: float) -> None:
    """Add what is sent of a range to a tensor, times a weight; an entry that is sent twice counts twice.

    Args:
        total: `[numel]`, written into.
        sent: its values are rounded to the type of the tensor first.
        weight: of the values.

    Raises: IndexError for a place outside the range.

    Example:
        >>> import torch
        >>> total = torch.ones(3)
        >>> sent = Range(start=1, stop=3, places=torch.tensor([1, 0]), values=torch.tensor([4.0, 8.0]))
        >>> add_range(total, sent, weight=0.5)
        >>> total
        tensor([1., 5., 3.])
    """
    if not uses_numba(total):
        sent.add_to(total, weight)
        return
    from relaxcomm.kernels.compiled import numba_sparse

    torch.autograd.graph.increment_version(total)
    into, offsets = sent.of(total).numpy(), sent.offsets
    values, scale = sent.values.to(total.dtype).numpy(), into.dtype.type(weight)
    starts = None if offsets is None else offsets.numpy()
    if not numba_sparse.add_at(into, starts, sent.places.numpy(), values, scale):
        raise IndexError(f"a message's index is out of range: the range has {into.size} entries")
