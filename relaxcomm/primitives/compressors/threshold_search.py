"""Finding the entries above a threshold in few passes over memory."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_CHUNK = 1 << 18  # entries that fit the cache with their absolute values
_BLOCK = 64  # entries that are skipped together if the largest is below the threshold


class Candidates:
    """A tensor of which the entries above several thresholds are asked for.

    On a CPU it is read in chunks that fit the cache; a threshold above an earlier one looks only at
    what that one has found.

    Args:
        tensor: `[numel]`.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._low = math.inf
        self._indices = torch.empty(0, dtype=torch.int64, device=tensor.device)
        self._sizes = torch.empty(0, device=tensor.device)

    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation of all entries."""
        numel, total, squares = self._tensor.numel(), 0.0, 0.0
        for chunk in torch.split(self._tensor, _CHUNK if self._tensor.device.type == "cpu" else numel):
            wide = chunk if chunk.dtype == torch.float64 else chunk.float()
            total += wide.sum().item()
            squares += torch.dot(wide, wide).item()
        mean = total / numel
        return mean, math.sqrt(max(0.0, squares / numel - mean * mean))

    def above(self, threshold: float) -> Tensor:
        """Indices of the entries with `|x| > threshold`, ascending."""
        if threshold < self._low:
            self._low = threshold
            self._indices = self._scan(threshold)
            self._sizes = self._tensor[self._indices].abs()
        return self._indices[self._sizes > threshold]

    def _scan(self, threshold: float) -> Tensor:
        if self._tensor.device.type != "cpu":
            return torch.nonzero(self._tensor.abs() > threshold).view(-1)
        found, start = [], 0
        for chunk in torch.split(self._tensor, _CHUNK):
            found.append(_scan_chunk(chunk, threshold).add_(start))
            start += chunk.numel()
        return torch.cat(found)


def _scan_chunk(chunk: Tensor, threshold: float) -> Tensor:
    sizes = chunk.abs()
    whole = chunk.numel() // _BLOCK * _BLOCK
    blocks = sizes[:whole].view(-1, _BLOCK)
    high = torch.nonzero(blocks.amax(1) > threshold).view(-1) if whole else torch.empty(0, dtype=torch.int64)
    rows = torch.nonzero(blocks.index_select(0, high) > threshold)
    indices = high[rows[:, 0]] * _BLOCK + rows[:, 1]
    rest = torch.nonzero(sizes[whole:] > threshold).view(-1) + whole
    return torch.cat([indices, rest])


def evenly(indices: Tensor, capacity: int) -> Tensor:
    """At most `capacity` of the indices, spread evenly, so that no part of the tensor is starved."""
    count = indices.numel()
    if count <= capacity:
        return indices
    return indices[torch.arange(capacity, device=indices.device) * count // capacity]
