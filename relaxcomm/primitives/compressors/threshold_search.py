"""Counting and finding the entries above a threshold, in few passes over memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from relaxcomm.kernels.large_entries import Terms, large_entries
from relaxcomm.tensors.finiteness import is_finite

_CHUNK = 1 << 19  # entries that fit the cache with their absolute values
_SUMMED = 1 << 18  # entries whose sums in float32 are still exact enough
_FEW = 32  # one large entry in as many is few
_SAMPLED = 400  # one entry in as many is looked at for a threshold
_LEAST_SAMPLE = 10_000
_SORTED = 1 << 15  # entries, at most, of which torch.topk finds the largest in less time than a search
_LEAST, _MOST = 1e-30, 1e37  # sums of squares of which float32 has lost nothing that matters
_NUMPY = (torch.float32, torch.float64)  # which it partitions several times as fast as torch


@dataclass(frozen=True, eq=False)
class Listed:
    """Some entries of a tensor.

    Args:
        indices: `[n]` int64, ascending.
        sizes: `[n]`.
    """

    indices: Tensor
    sizes: Tensor

    def __len__(self) -> int:
        return self.indices.numel()

    def count(self, threshold: float) -> int:
        """How many of them are above a threshold."""
        return int((self.sizes > threshold).sum())

    def above(self, threshold: float) -> Listed:
        """The listed entries above a threshold."""
        return self._some(self.sizes > threshold)

    def largest(self, k: int) -> Tensor:
        """Indices of the k largest, or of all if there are fewer, ascending; of equal ones the first."""
        if len(self) <= k:
            return self.indices
        least = _kth_largest(self.sizes, k)
        chosen = self.sizes > least
        equal = torch.nonzero(self.sizes == least).view(-1)
        chosen[equal[: k - int(chosen.sum())]] = True
        return self._some(chosen).indices

    def _some(self, chosen: Tensor) -> Listed:
        places = torch.nonzero(chosen).view(-1)
        return Listed(self.indices.index_select(0, places), self.sizes.index_select(0, places))


class Magnitudes:
    """A tensor whose entries are asked for by their size. On a CPU it is read in chunks that fit the cache.

    Args:
        tensor: `[numel]`, which must not change meanwhile.
        terms: x, e and a factor, where the first pass is still to make the tensor `x + factor e`.
    """

    def __init__(self, tensor: Tensor, terms: Terms | None = None) -> None:
        self.tensor = tensor
        self._terms = terms
        self._on_cpu = tensor.device.type == "cpu"
        self._chunks = torch.split(tensor, _CHUNK if self._on_cpu else max(1, tensor.numel()))
        self._sampling = max(1, min(_SAMPLED, tensor.numel() // _LEAST_SAMPLE))
        self._sums: _Sums | None = None  # as soon as a pass was made
        self._known_finite = False

    def is_finite(self) -> bool:
        """Whether every entry is; for nothing if the sum or the largest size is known."""
        if self._known_finite or (self._sums is not None and math.isfinite(self._sums.total)):
            return True
        return is_finite(self.tensor)

    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation (that of a sample, as `torch.std`) of all entries."""
        sums = self._sums
        if sums is None or sums.squares is None:
            self._sums = sums = _Sums(squares=True)
            for chunk in self._made():
                sums.add(chunk)
        numel, squares = self.tensor.numel(), sums.squares or 0.0
        mean = sums.total / numel
        deviations = squares - mean * sums.total
        # Squares may be beyond the type's range, or nothing but rounding left of the difference.
        if not (_LEAST < squares < _MOST and deviations > 1e-3 * squares):
            return self._moments_in_two_passes()
        return mean, math.sqrt(deviations / max(1, numel - 1))

    def _parts(self) -> Iterator[tuple[Tensor, Terms | None]]:
        """The chunks, each with the terms that the first pass makes it of."""
        if self._terms is None:
            yield from ((chunk, None) for chunk in self._chunks)
            return
        tensor, other, factor = self._terms
        split = (torch.split(one, self._chunks[0].numel()) for one in (tensor, other))
        for chunk, one, more in zip(self._chunks, *split, strict=True):
            yield chunk, (one, more, factor)
        self._terms = None

    def _made(self) -> Iterator[Tensor]:
        """The chunks, made of their terms by the first pass."""
        for chunk, terms in self._parts():
            if terms is not None:
                torch.add(terms[0], terms[1], alpha=terms[2], out=chunk)
            yield chunk

    def sample(self, distance: int) -> Tensor:
        """Sizes of entries at even distances."""
        if self._terms is None:
            return self.tensor[::distance].abs()
        tensor, other, factor = self._terms
        return torch.add(tensor[::distance], other[::distance], alpha=factor).abs_()

    def _moments_in_two_passes(self) -> tuple[float, float]:
        """The moments of entries that are far from 1, or closer to each other than to 0."""
        numel, unit = self.tensor.numel(), max(chunk.abs().amax().item() for chunk in self._chunks)
        if not 0 < unit < math.inf:  # all are 0, or not all are finite
            return 0.0, 0.0
        mean = sum((chunk.double() / unit).sum().item() for chunk in self._chunks) / numel
        deviations = sum((chunk.double() / unit - mean).square().sum().item() for chunk in self._chunks)
        return mean * unit, math.sqrt(deviations / max(1, numel - 1)) * unit

    def threshold_for(self, k: int) -> float:
        """A size that about k entries reach, from a sample at even distances."""
        sample = self.sample(self._sampling)
        wanted = min(sample.numel(), max(1, math.ceil(k / self._sampling)))
        threshold = _kth_largest(sample, wanted)
        return float(torch.nextafter(threshold, threshold * 0))  # the size itself counts

    def largest(self, k: int) -> Tensor:
        """Indices of the k largest entries but those of 0, ascending; of equal ones the first.

        Args:
            k: entries, 1 or more.
        """
        found = self._sorted_largest(k) if self._on_cpu and k < self.tensor.numel() <= _SORTED else None
        # The k largest are among any k or more that exceed the same size; of a size of 0 none need be sent.
        return self.more_than(k)[1].largest(k) if found is None else found

    def _sorted_largest(self, k: int) -> Tensor | None:
        """The same of few entries; None where sizes do not tell which: equal at the end, or not finite."""
        for _ in self._made():
            pass
        sizes, places = torch.topk(self.tensor.abs(), k + 1)
        self._known_finite = math.isfinite(sizes[0].item())  # NaN is the largest
        if not self._known_finite or sizes[k - 1].item() == sizes[k].item():
            return None
        return places[:k].sort().values

    def more_than(self, k: int, *, moments: bool = False) -> tuple[float, Listed]:
        """A size, 0 or more, and all entries above it: at least k, or all that are not 0.

        Args:
            k: entries, 1 or more.
            moments: whether `moments` is to be known then, too.
        """
        wanted = k + int(4 * math.sqrt(k * self._sampling))  # four standard deviations of the sample's count
        while True:
            low = self.threshold_for(wanted) if wanted < self.tensor.numel() else 0.0
            listed = self.above(low, moments=moments)
            if len(listed) >= k or not low > 0:
                return low, listed
            wanted *= 4

    def above(self, threshold: float, *, moments: bool = False) -> Listed:
        """The entries with `|x| > threshold`; of moments see `more_than`."""
        indices, found, start, few = [], [], 0, True
        sums = _Sums(squares=moments)
        for chunk, terms in self._parts():
            places, sizes = large_entries(chunk, threshold, start, terms, few=few)
            indices.append(places)
            found.append(sizes)
            start, few = start + chunk.numel(), places.numel() * _FEW <= chunk.numel()
            if self._on_cpu:
                sums.add(chunk)
        if self._on_cpu:
            self._sums = sums
        return Listed(torch.cat(indices), torch.cat(found))


class _Sums:
    """The sum of the entries of some chunks, and that of their squares if it is asked for."""

    def __init__(self, *, squares: bool) -> None:
        self.total, self.squares = 0.0, 0.0 if squares else None

    def add(self, chunk: Tensor) -> None:
        for part in torch.split(chunk, _SUMMED):
            wide = part if part.dtype == torch.float64 else part.float()
            self.total += wide.sum().item()
            if self.squares is not None:
                self.squares += torch.dot(wide, wide).item()


def _kth_largest(sizes: Tensor, k: int) -> Tensor:
    """The k-th largest size."""
    if sizes.device.type == "cpu" and sizes.dtype in _NUMPY:
        return torch.from_numpy(np.partition(sizes.numpy(), -k)[-k:][:1])[0]
    return torch.topk(sizes, k, sorted=True).values[-1]
