"""The kernel of `normal_threshold`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from relaxcomm.kernels.launch_sizes import next_power_of_two
from relaxcomm.kernels.magnitude_statistics import MagnitudeStatistics
from relaxcomm.kernels.magnitudes import BIN_SHIFT, LARGEST_FINITE, NUM_BINS


def launch(found: MagnitudeStatistics, k: int, capacity: int, quantile: float, fallback: bool) -> Tensor:
    """The threshold's bits."""
    threshold = torch.empty(1, dtype=torch.int32, device=found.largest.device)
    _threshold[(1,)](
        found.sums,
        found.num_not_finite,
        found.histogram,
        threshold,
        len(found.sums),
        found.numel,
        k,
        capacity,
        quantile,
        PARTS=next_power_of_two(len(found.sums)),
        MANTISSAS=len(found.histogram),
        SHIFT=BIN_SHIFT,
        BINS=NUM_BINS,
        FALLBACK=fallback,
        LARGEST_FINITE=LARGEST_FINITE,
        num_warps=16,
        enable_fp_fusion=False,  # rounded as the same arithmetic in torch
    )
    return threshold


@triton.jit
def _key(threshold):
    """Of a threshold in float64."""
    return tl.maximum(threshold, 0.0).to(tl.float32).to(tl.int32, bitcast=True)


@triton.jit
def _count(threshold, histogram, bins, counted, numel, SHIFT: tl.constexpr):
    """How many entries exceed a threshold, in float64."""
    key = _key(threshold)
    own = tl.sum(tl.where(bins == (key >> SHIFT), histogram, 0), axis=0).to(tl.float64)
    above = tl.sum(tl.where(bins > (key >> SHIFT), histogram, 0), axis=0).to(tl.float64)
    below = own * (key & ((1 << SHIFT) - 1)).to(tl.float64) / (1 << SHIFT)
    found = (above + own - below) * numel / counted
    return tl.where(threshold < 0, numel, found)


@triton.jit
def _edge(histogram, wanted, k, capacity, numel, counted, SHIFT: tl.constexpr, BINS: tl.constexpr):
    """As the reference's; numbers are in int64, but the histogram."""
    bins = tl.arange(0, BINS)
    scaled = (counted - tl.cumsum(histogram, 0) + histogram) * numel
    lower = tl.sum((scaled >= wanted * counted).to(tl.int32), axis=0) - 1
    upper = tl.minimum(lower + 1, BINS - 1)
    at_lower = tl.sum(tl.where(bins == lower, scaled, 0), axis=0)
    at_upper = tl.sum(tl.where(bins == upper, scaled, 0), axis=0)
    upper_is_better = (at_lower > capacity * counted) & (3 * at_upper >= 2 * k * counted)
    edge = tl.where(upper_is_better, upper, lower)
    return tl.maximum((edge << SHIFT) - 1, 0)


@triton.jit(do_not_specialize=["num_parts", "numel", "k", "capacity"])
def _threshold(
    sums_ptr,
    not_finite_ptr,
    histogram_ptr,
    out_ptr,
    num_parts,
    numel,
    k,
    capacity,
    quantile,
    PARTS: tl.constexpr,
    MANTISSAS: tl.constexpr,
    SHIFT: tl.constexpr,
    BINS: tl.constexpr,
    FALLBACK: tl.constexpr,
    LARGEST_FINITE: tl.constexpr,
):
    """One program: the numbers are few."""
    bins = tl.arange(0, BINS)
    EXPONENTS: tl.constexpr = BINS // MANTISSAS
    slots = tl.arange(0, MANTISSAS)[:, None] * EXPONENTS + tl.arange(0, EXPONENTS)[None, :]
    histogram = tl.reshape(tl.trans(tl.load(histogram_ptr + slots)), (BINS,))
    parts = tl.arange(0, PARTS)
    total = tl.sum(tl.load(sums_ptr + 2 * parts, mask=parts < num_parts, other=0.0), axis=0)
    squares = tl.sum(tl.load(sums_ptr + 2 * parts + 1, mask=parts < num_parts, other=0.0), axis=0)
    spoilt = tl.sum(tl.load(not_finite_ptr + parts, mask=parts < num_parts, other=0), axis=0)
    counted = tl.sum(histogram, axis=0)
    numel, k, capacity = numel.to(tl.int64), k.to(tl.int64), capacity.to(tl.int64)
    entries, wanted, most = numel.to(tl.float64), k.to(tl.float64), capacity.to(tl.float64)

    mean = total / entries
    deviations = tl.maximum(squares - mean * total, 0.0) / tl.maximum(entries - 1, 1.0)
    threshold = mean + tl.sqrt(deviations) * quantile
    threshold = tl.where(threshold == threshold, threshold, 0.0)
    found = _count(threshold, histogram, bins, counted, entries, SHIFT)
    for _ in tl.static_range(2):
        refined = tl.where(found > 4 * wanted / 3, threshold * 1.5, threshold)
        threshold = tl.where(found < 2 * wanted / 3, threshold * 0.5, refined)
        found = _count(threshold, histogram, bins, counted, entries, SHIFT)

    overfull = found > most
    goal = tl.where(overfull, capacity, k)
    edge = _edge(histogram, goal, k, capacity, numel, counted.to(tl.int64), SHIFT, BINS)
    replaced = overfull
    if FALLBACK:
        replaced = overfull | (found < 2 * wanted / 3)
    key = tl.where(replaced, edge, _key(threshold))
    tl.store(out_ptr, tl.where(spoilt > 0, LARGEST_FINITE, key))
