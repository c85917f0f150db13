"""Counting and finding the entries above a threshold, in few passes over memory."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_CHUNK = 1 << 18  # entries that fit the cache with their absolute values
_SAMPLED = 100  # one entry in as many is looked at for a threshold
_LEAST_SAMPLE = 10_000
_LEAST, _MOST = 1e-30, 1e37  # sums of squares of which float32 has lost nothing that matters
_BLOCK = 64  # entries that are skipped together if the largest is below the threshold


class Magnitudes:
    """A tensor whose entries are asked for by their size. On a CPU it is read in chunks that fit the cache.

    Args:
        tensor: `[numel]`.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._chunks = torch.split(tensor, _CHUNK if tensor.device.type == "cpu" else max(1, tensor.numel()))
        self._sampling = max(1, min(_SAMPLED, tensor.numel() // _LEAST_SAMPLE))
        self._buffer = torch.empty_like(self._chunks[0])

    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation (that of a sample, as `torch.std`) of all entries."""
        numel, total, squares = self._tensor.numel(), 0.0, 0.0
        for chunk in self._chunks:
            wide = chunk if chunk.dtype == torch.float64 else chunk.float()
            total += wide.sum().item()
            squares += torch.dot(wide, wide).item()
        mean = total / numel
        deviations = squares - mean * total
        # Squares may be beyond the type's range, or nothing but rounding left of the difference.
        if not (_LEAST < squares < _MOST and deviations > 1e-3 * squares):
            return self._moments_in_two_passes()
        return mean, math.sqrt(deviations / max(1, numel - 1))

    def _moments_in_two_passes(self) -> tuple[float, float]:
        """The same of entries that are far from 1, or closer to each other than to 0."""
        numel, unit = self._tensor.numel(), self._largest_size()
        if not 0 < unit < math.inf:  # all are 0, or not all are finite
            return 0.0, 0.0
        mean = sum((chunk.double() / unit).sum().item() for chunk in self._chunks) / numel
        deviations = sum((chunk.double() / unit - mean).square().sum().item() for chunk in self._chunks)
        return mean * unit, math.sqrt(deviations / max(1, numel - 1)) * unit

    def _largest_size(self) -> float:
        sizes = (torch.abs(chunk, out=self._buffer[: chunk.numel()]) for chunk in self._chunks)
        return max(one.amax().item() for one in sizes)

    def count(self, threshold: float) -> int:
        """The number of entries with `|x| > threshold`."""
        found = 0.0
        for chunk in self._chunks:
            # As numbers rather than bits: sums of bits take three times as long.
            sizes = torch.abs(chunk, out=self._buffer[: chunk.numel()])
            found += torch.gt(sizes, threshold, out=sizes).sum(dtype=torch.float32).item()
        return int(found)

    def threshold_for(self, k: int) -> float:
        """A size that about k entries reach, from a sample at even distances."""
        sample = self._tensor[:: self._sampling].abs()
        wanted = min(sample.numel(), max(1, math.ceil(k / self._sampling)))
        threshold = torch.topk(sample, wanted, sorted=True).values[-1]
        return float(torch.nextafter(threshold, threshold * 0))  # the size itself counts

    def more_than(self, k: int) -> tuple[float, Tensor]:
        """A size, 0 or more, and the indices of all entries above it: at least k, or all that are not 0."""
        wanted = k + int(4 * math.sqrt(k * self._sampling))  # four standard deviations of the sample's count
        while True:
            low = self.threshold_for(wanted) if wanted < self._tensor.numel() else 0.0
            indices = self.above(low)
            if indices.numel() >= k or not low > 0:
                return low, indices
            wanted *= 4

    def above(self, threshold: float) -> Tensor:
        """Indices of the entries with `|x| > threshold`, ascending."""
        found, start = [], 0
        for chunk in self._chunks:
            sizes = torch.abs(chunk, out=self._buffer[: chunk.numel()])
            found.append(_indices_above(sizes, threshold).add_(start))
            start += chunk.numel()
        return torch.cat(found)

    def largest(self, indices: Tensor, k: int) -> Tensor:
        """The k of the indices whose entries are largest, or all if there are fewer."""
        if indices.numel() <= k:
            return indices
        return indices[torch.topk(self._tensor[indices].abs(), k, sorted=False).indices]


def _indices_above(sizes: Tensor, threshold: float) -> Tensor:
    whole = sizes.numel() // _BLOCK * _BLOCK
    if sizes.device.type != "cpu" or not whole:
        return torch.nonzero(sizes > threshold).view(-1)
    blocks = sizes[:whole].view(-1, _BLOCK)
    high = torch.nonzero(blocks.amax(1) > threshold).view(-1)
    rows = torch.nonzero(blocks.index_select(0, high) > threshold)
    indices = high[rows[:, 0]] * _BLOCK + rows[:, 1]
    return torch.cat([indices, torch.nonzero(sizes[whole:] > threshold).view(-1) + whole])
