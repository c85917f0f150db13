"""A threshold from a sample."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Share, frozen
from relaxcomm.fields.schedules import Density
from relaxcomm.kernels.compaction import compact
from relaxcomm.kernels.dispatch import is_for_kernels
from relaxcomm.kernels.magnitude_statistics import magnitude_statistics
from relaxcomm.kernels.magnitudes import LARGEST_FINITE
from relaxcomm.primitives.compressors.sparsifier import Sparsifier, num_kept
from relaxcomm.primitives.compressors.threshold_search import Magnitudes
from relaxcomm.tensors.messages import Sparse

_LISTED = 1 << 16  # the fewest entries above a threshold that a GPU looks through for the largest


@frozen
class dgc(Sparsifier):
    """The entries above a threshold that is read off a sample: its own largest `density` lie above it.

    The sample is every (1 / sample)-th entry. Where more than `4 k / 3` entries lie above its threshold,
    the k largest of them are sent. Biased: use it inside `error_feedback` or `momentum_correction`.

    On a GPU the largest of them are looked for among the first `max(4 k, 65536)`.

    Args:
        density: fraction of the entries wanted, in (0, 1], or a schedule.
        sample: fraction of the entries that are looked at for the threshold, in (0, 1].
        scope: whether it is counted over the whole "model" (what the rule covers; apart for each dtype, and
            where other rules cover a part of it) or over each "bucket".

    Example:
        >>> import torch
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.primitives import dgc
        >>> (arrived,) = round_trip(dgc(density=0.001), [torch.arange(10_000.0)])
        >>> arrived.nonzero().flatten()
        tensor([9990, 9991, 9992, 9993, 9994, 9995, 9996, 9997, 9998, 9999])

    Reference: Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for
        Distributed Training", ICLR 2018.

    Differs from the paper: the sample is taken at even distances, so that it needs no random state.
    """

    density: Density
    sample: Share = 0.01
    scope: Literal["model", "bucket"] = "model"

    facts = Sparsifier.facts

    def capacity(self, k: int, numel: int) -> int:
        return min(numel, math.ceil(4 * k / 3))

    def select(self, sizes: Magnitudes, density: float, capacity: int) -> Tensor:
        numel = sizes.tensor.numel()
        k = num_kept(density, numel)
        threshold = _threshold(sizes.sample(self._distance), k, numel)[0]
        # The threshold itself counts, or a constant tensor would send nothing.
        listed = sizes.above(torch.nextafter(threshold, threshold * 0).item())
        return listed.indices if len(listed) <= capacity else listed.largest(k)

    def message(self, tensor: Tensor, density: float, capacity: int) -> Sparse:
        if not is_for_kernels(tensor):
            return super().message(tensor, density, capacity)
        numel, found = tensor.numel(), magnitude_statistics(tensor)
        k = num_kept(density, numel)
        key = _threshold(tensor[:: self._distance].abs(), k, numel).float().view(torch.int32)
        key = torch.where(found.num_not_finite.sum() > 0, LARGEST_FINITE, (key - 1).clamp_(min=0))
        listed = min(numel, max(4 * k, _LISTED))
        values, indices, count = compact(tensor, key, found.largest, listed, dtype=tensor.dtype)
        order = torch.topk(values.abs(), capacity, sorted=True).indices  # what is unused is 0 and comes last
        count = torch.where(count > capacity, k, count)
        used = torch.arange(capacity, device=tensor.device) < count
        return Sparse(torch.where(used, values[order], 0), torch.where(used, indices[order], 0), count)

    @property
    def _distance(self) -> int:
        return max(1, round(1 / self.sample))


def _threshold(sample: Tensor, k: int, numel: int) -> Tensor:
    """The size, `[1]`, that as large a part of a sample reaches as k entries are of all."""
    wanted = min(sample.numel(), max(1, round(k * sample.numel() / numel)))
    return torch.topk(sample, wanted, sorted=True).values[-1:]
