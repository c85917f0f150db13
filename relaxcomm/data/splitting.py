"""A batch in parts, for gradients that are accumulated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def split_batch(batch: Any, size: int) -> Iterator[tuple[Any, float]]:
    """Parts of at most `size` samples of a nested batch of tensors, each with its share of the samples.

    Example:
        >>> import torch
        >>> from relaxcomm.data import split_batch
        >>> [(part.tolist(), round(share, 2)) for part, share in split_batch(torch.arange(3), 2)]
        [([0, 1], 0.67), ([2], 0.33)]
    """
    total = num_samples(batch)
    for start in range(0, total, size):
        stop = min(start + size, total)
        yield _part(batch, start, stop), (stop - start) / total


def num_samples(batch: Any) -> int:
    """Samples of a nested batch of tensors.

    Example:
        >>> import torch
        >>> from relaxcomm.data import num_samples
        >>> num_samples({"x": torch.zeros(3, 5), "y": torch.zeros(3)})
        3
    """
    if isinstance(batch, torch.Tensor):
        return len(batch)
    return num_samples(next(iter(batch.values())) if isinstance(batch, dict) else batch[0])


def _part(batch: Any, start: int, stop: int) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch[start:stop]
    if isinstance(batch, dict):
        return {key: _part(value, start, stop) for key, value in batch.items()}
    return type(batch)(_part(value, start, stop) for value in batch)
