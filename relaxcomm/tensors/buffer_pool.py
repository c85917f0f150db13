"""Large buffers on the CPU, used again when no tensor looks at them any more.

Without this, half of the processor time of an exchange of 42 MB was fresh memory: the operating system hands
it out page by page, and the C library gives buffers of more than 32 MB back at once.
"""

from __future__ import annotations

import weakref
from collections import defaultdict

import torch
from torch import Tensor

LEAST_BYTES = 1 << 20  # smaller ones the C library keeps itself
_free: defaultdict[int, list[Tensor]] = defaultdict(list)


def empty(numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What `torch.empty` makes, perhaps in memory that was used before.

    Args:
        numel: entries.
        dtype: of the entries.
        device: only the CPU's memory is kept here; for a GPU's torch does so.

    Returns: a tensor `[numel]`, whose memory is free again when it and all its views are gone.

    Example:
        >>> empty(3, torch.float32, torch.device("cpu")).shape
        torch.Size([3])
    """
    num_bytes = numel * dtype.itemsize
    if device.type != "cpu" or num_bytes < LEAST_BYTES:
        return torch.empty(numel, dtype=dtype, device=device)
    free = _free[num_bytes]
    try:
        kept = free.pop()
    except IndexError:
        kept = _fresh(num_bytes)
    window = kept.numpy().data  # which the tensor holds, and nobody else
    weakref.finalize(window, free.append, kept).atexit = False
    return torch.frombuffer(window, dtype=dtype)


def _fresh(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8)


def empty_like(like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """What `empty` makes for the entries of a flat tensor, `[numel]`."""
    return empty(like.numel(), dtype or like.dtype, like.device)


def out_or_empty(like: Tensor, dtype: torch.dtype, out: Tensor | None, *read: Tensor) -> Tensor:
    """`out`, if it has the shape of `like` and the type, and nothing that is still read lies in its memory;
    else what `empty_like` makes."""
    if out is not None and out.shape == like.shape and out.dtype == dtype:
        memory = out.untyped_storage().data_ptr()
        if all(one.untyped_storage().data_ptr() != memory for one in read):
            return out
    return empty_like(like, dtype)


def add(one: Tensor, other: Tensor, weight: float, out: Tensor | None = None) -> Tensor:
    """`one + weight other`, of flat tensors, in `out` if that has the type of the sum."""
    into = out_or_empty(one, torch.promote_types(one.dtype, other.dtype), out)
    return torch.add(one, other, alpha=weight, out=into)


def release() -> None:
    """Give the operating system back what no tensor uses now."""
    _free.clear()
