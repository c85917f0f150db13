"""What is to be known of a corrected tensor to choose its large entries, in one read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from relaxcomm.kernels.dispatch import on_its_device, uses_triton
from relaxcomm.kernels.magnitudes import (
    INFINITY,
    MANTISSA_BITS,
    NUM_BINS,
    NUM_EXPONENTS,
    ROW,
    bin_slots,
    counted_entries,
    magnitude_keys,
)


@dataclass(frozen=True, eq=False)
class MagnitudeStatistics:
    """Statistics of entries v. What several parts of a tensor have found apart is still to be added up.

    Args:
        sums: `[parts, 2]` float64: of v, and of `v^2`.
        num_not_finite: `[parts]` int32: entries that are NaN or infinite.
        histogram: `[2^MANTISSA_BITS, NUM_EXPONENTS]` int32: of `|v|`, of the entries that are counted.
        largest: `[ceil(numel / ROW)]` int32: the largest key of each row of entries.
        numel: entries.
    """

    sums: Tensor
    num_not_finite: Tensor
    histogram: Tensor
    largest: Tensor
    numel: int


def magnitude_statistics(
    tensor: Tensor, residual: Tensor | None = None, decay: float = 1.0, out: Tensor | None = None
) -> MagnitudeStatistics:
    """Write `u = x + decay e` and look at v, u as the messages' type holds it; without a residual v is x.

    Sums are kept in float64, so that no square of a float32 leaves the range. Of more than a million
    entries some rows are counted in the histogram, which every row has the same chance to be.

    Args:
        tensor: x, `[numel]`, float32, bfloat16 or float16; at least one entry.
        residual: e, `[numel]` float32, or None.
        decay: of the residual.
        out: for u, `[numel]` float32; given with a residual.

    Example:
        >>> import torch
        >>> u = torch.empty(2)
        >>> found = magnitude_statistics(torch.tensor([1.0, -2.0]), torch.tensor([2.0, -2.0]), 1.0, u)
        >>> u, found.sums.sum(0), found.histogram.sum()
        (tensor([ 3., -4.]), tensor([-1., 25.], dtype=torch.float64), tensor(2))
    """
    if uses_triton(tensor):
        from relaxcomm.kernels.compiled import triton_magnitude_statistics

        with on_its_device(tensor):
            found = triton_magnitude_statistics.launch(tensor, residual, decay, out)
        return MagnitudeStatistics(*found, numel=tensor.numel())
    values = tensor
    if residual is not None:
        values = torch.add(tensor, residual, alpha=decay, out=out).to(tensor.dtype)
    keys, wide = magnitude_keys(values), values.double()
    counted = counted_entries(tensor.numel(), tensor.device)
    histogram = counted.new_zeros(NUM_BINS).scatter_add_(0, bin_slots(keys), counted)
    rows = pad(keys, (0, -keys.numel() % ROW)).view(-1, ROW)
    return MagnitudeStatistics(
        sums=torch.stack((wide.sum(), wide.square().sum())).view(1, 2),
        num_not_finite=keys.ge(INFINITY).sum(dtype=torch.int32).view(1),
        histogram=histogram.view(1 << MANTISSA_BITS, NUM_EXPONENTS),
        largest=rows.amax(1),
        numel=tensor.numel(),
    )
