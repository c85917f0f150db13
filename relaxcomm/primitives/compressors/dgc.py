"""Other ways to a threshold: from a sample, and by bisection."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor

from relaxcomm.fields.frozen import Share, frozen
from relaxcomm.fields.schedules import Density
from relaxcomm.primitives.compressors.sparsifier import Sparsifier, num_kept
from relaxcomm.primitives.compressors.threshold_search import Magnitudes


@frozen
class dgc(Sparsifier):
    """The entries above the threshold that would take the top k of a sample.

    The sample is every (1 / sample)-th entry. Where more than `4 k / 3` entries lie above its threshold,
    the k largest of them are sent. Biased: use it inside `error_feedback` or `momentum_correction`.

    Args:
        density: fraction of the entries wanted, in (0, 1], or a schedule.
        sample: fraction of the entries that are looked at for the threshold, in (0, 1].
        scope: whether it is counted over the whole "model" (for each dtype) or over each "bucket".

    Example:
        >>> dgc(density=0.001)
        dgc(density=0.001)

    Reference: Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for
        Distributed Training", ICLR 2018.

    Differs from the paper: the sample is taken at even distances, so that it needs no random state.
    """

    density: Density
    sample: Share = 0.01
    scope: Literal["model", "bucket"] = "model"

    def capacity(self, k: int, numel: int) -> int:
        return min(numel, math.ceil(4 * k / 3))

    def select(self, tensor: Tensor, density: float, capacity: int) -> Tensor:
        k = num_kept(density, tensor.numel())
        sizes = tensor[:: max(1, round(1 / self.sample))].abs()
        wanted = min(sizes.numel(), max(1, round(k * sizes.numel() / tensor.numel())))
        threshold = torch.topk(sizes, wanted, sorted=True).values[-1]
        # The threshold itself counts, or a constant tensor would send nothing.
        found = Magnitudes(tensor)
        indices = found.above(torch.nextafter(threshold, threshold * 0).item())
        return indices if indices.numel() <= capacity else found.largest(indices, k)


@frozen
class redsync(Sparsifier):
    """The entries above a threshold found by bisection between the mean and the largest size.

    It is accepted when it finds more than k and less than 2 k entries; after 20 halvings the k largest of
    what the lower end has found are sent. Biased: use it inside `error_feedback`.

    Args:
        density: fraction of the entries wanted, in (0, 1], or a schedule.
        scope: whether it is counted over the whole "model" (for each dtype) or over each "bucket".

    Example:
        >>> redsync(density=0.001)
        redsync(density=0.001)

    Reference: Fang et al., "RedSync: Reducing Synchronization Bandwidth for Distributed Deep Learning
        Training System", JPDC 2019.
    """

    density: Density
    scope: Literal["model", "bucket"] = "model"

    rounds_of_search: ClassVar[int] = 20

    def capacity(self, k: int, numel: int) -> int:
        return min(numel, 2 * k)

    def select(self, tensor: Tensor, density: float, capacity: int) -> Tensor:
        sizes, k = Magnitudes(tensor), num_kept(density, tensor.numel())
        low, high = sizes.mean_and_largest()
        enough: float | None = None
        for _ in range(self.rounds_of_search):
            middle = (low + high) / 2
            count = sizes.count(middle)
            if k < count < 2 * k:
                return sizes.above(middle)
            if count <= k:
                high = middle
            else:
                low = enough = middle
        if enough is None:  # the mean itself is among the largest: nearly constant
            return torch.topk(tensor.abs(), k, sorted=False).indices
        return sizes.largest(sizes.above(enough), k)
