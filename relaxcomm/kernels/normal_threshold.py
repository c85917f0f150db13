"""The rule of GaussianK, asked of a histogram on the device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from relaxcomm.kernels.device_numbers import device_numbers
from relaxcomm.kernels.dispatch import on_its_device, uses_triton
from relaxcomm.kernels.magnitude_statistics import MagnitudeStatistics
from relaxcomm.kernels.magnitudes import BIN_SHIFT, LARGEST_FINITE, NUM_BINS

# All thresholds that may be tried, as factors of the first, and which of them follows one that found too few
# or too many; the last three follow the second and third, and are tried last.
_FIRST_FACTORS = (1.0, 0.5, 1.5, 0.5, 0.5, 1.5)
_SECOND_FACTORS = (1.0, 1.0, 1.0, 0.5, 1.5, 1.5)
_AFTER_TOO_FEW = (1, 3, 4, 3, 4, 5)
_AFTER_TOO_MANY = (2, 4, 5, 3, 4, 5)


def normal_threshold(
    found: MagnitudeStatistics, *, k: int, capacity: int, quantile: float, fallback: bool
) -> Tensor:
    """A size that about k entries exceed: `t = mean + quantile std`, refined at most twice.

    With c entries above t: t halves if `c < 2 k / 3`, grows by a half if `c > 4 k / 3`, else it is kept.
    c is read off the histogram, evenly within a bin. If the third c is above the capacity or, with a
    `fallback`, below `2 k / 3`, t becomes the edge of a bin that at least as many entries exceed as a message
    takes or as are wanted; of one bin that holds more than the message takes, its first entries are sent.
    Where an entry is not finite, all such exceed the threshold and no others.

    Args:
        found: statistics of the entries.
        k: entries wanted, 1 or more.
        capacity: entries that a message holds, k or more.
        quantile: of a normal distribution, in standard deviations.
        fallback: whether about k entries are sent where too few exceed the last threshold.

    Returns: `[1]` int32, the threshold's bits as `magnitude_keys` has them.

    Example:
        >>> import torch
        >>> from relaxcomm.kernels.magnitude_statistics import magnitude_statistics
        >>> x = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
        >>> found = magnitude_statistics(x)
        >>> key = normal_threshold(found, k=1000, capacity=1334, quantile=2.576, fallback=True)
        >>> key.view(torch.float32), (x.abs() > key.view(torch.float32)).sum()
        (tensor([2.5768]), tensor(1028))
    """
    quantile = float(np.float32(quantile))  # as kernels are given it
    if uses_triton(found.largest):
        from relaxcomm.kernels.compiled import triton_normal_threshold

        with on_its_device(found.largest):
            return triton_normal_threshold.launch(found, k, capacity, quantile, fallback)
    histogram = found.histogram.t().reshape(-1)
    at_least = histogram.flip(0).cumsum(0).flip(0)  # in a bin and all above it
    tried = _tried(found, quantile)
    keys, counts = _counts(tried, histogram, at_least, found.numel)
    too_few, too_many = counts < 2 * k / 3, counts > 4 * k / 3
    key, count = _last(keys, counts, too_few, too_many)
    overfull = count > capacity
    edge = _edge(at_least, torch.where(overfull, capacity, k), k, capacity, found.numel)
    replaced = overfull | (count < 2 * k / 3) if fallback else overfull
    key = torch.where(replaced, edge, key)
    spoilt = found.num_not_finite.sum() > 0
    return torch.where(spoilt, LARGEST_FINITE, key).to(torch.int32)


def _tried(found: MagnitudeStatistics, quantile: float) -> Tensor:
    """All thresholds that may be tried, `[6]` float64."""
    total, squares = found.sums.sum(0).unbind()
    mean = total / found.numel
    deviations = (squares - mean * total).clamp(min=0) / max(1, found.numel - 1)
    first = mean + deviations.sqrt() * quantile
    device = found.sums.device
    once, twice = (
        device_numbers(factors, torch.float64, device) for factors in (_FIRST_FACTORS, _SECOND_FACTORS)
    )
    return first.nan_to_num() * once * twice


def _counts(tried: Tensor, histogram: Tensor, at_least: Tensor, numel: int) -> tuple[Tensor, Tensor]:
    """Keys of thresholds, and how many entries exceed each."""
    keys = tried.clamp(min=0).float().view(torch.int32)
    bins = (keys >> BIN_SHIFT).long()
    below = histogram[bins] * (keys & ((1 << BIN_SHIFT) - 1)).double() / (1 << BIN_SHIFT)
    counts = (at_least[bins] - below) * numel / at_least[0]
    # Far from a mean of zero every entry counts, but those of 0 need no message.
    return keys, torch.where(tried < 0, numel, counts)


def _last(keys: Tensor, counts: Tensor, too_few: Tensor, too_many: Tensor) -> tuple[Tensor, Tensor]:
    """The threshold that is tried last and its count, `[1]` each."""
    few, many, same = (
        device_numbers(tuple(numbers), torch.int64, keys.device)
        for numbers in (_AFTER_TOO_FEW, _AFTER_TOO_MANY, range(len(_AFTER_TOO_FEW)))
    )
    following = torch.where(too_few, few, torch.where(too_many, many, same))
    last = following[following[:1]]
    return keys[last], counts[last]


def _edge(at_least: Tensor, wanted: Tensor, k: int, capacity: int, numel: int) -> Tensor:
    """A key just below a bin that about the wanted number of entries reach, `[1]`."""
    scaled = at_least * numel
    counted = at_least[0]
    lower = (scaled >= wanted * counted).sum() - 1
    upper = (lower + 1).clamp(max=NUM_BINS - 1)
    both = scaled[torch.stack((lower, upper))]
    upper_is_better = (both[0] > capacity * counted) & (3 * both[1] >= 2 * k * counted)
    edge = torch.where(upper_is_better, upper, lower)
    return ((edge << BIN_SHIFT) - 1).clamp(min=0)
