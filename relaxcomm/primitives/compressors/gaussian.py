"""Entries beyond a threshold that a normal distribution would put at the wanted density."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor

from relaxcomm.frozen import frozen
from relaxcomm.primitives.compressors.sparse import Sparsifier
from relaxcomm.primitives.compressors.threshold_search import Candidates, evenly
from relaxcomm.schedules import Density

_EVALUATIONS = 3


@frozen
class gaussian_k(Sparsifier):
    """The entries with `|x - 0| > t`, `t = mean + std Phi^-1(1 - density / 2)`, refined at most twice.

    With k entries wanted and c found: t halves if `c < 2 k / 3`, grows by a half if `c > 4 k / 3`, and
    is kept otherwise; the third count is the last. A message holds up to `ceil(4 k / 3)` entries;
    of more, an even choice is sent and the rest stays in the residual. Much faster than an exact
    top-k. Biased: use it inside `error_feedback`.

    Args:
        density: fraction of the entries wanted, in (0, 1], or a schedule.
        scope: whether it is counted over the whole "model" (for each dtype) or over each "bucket".

    Example:
        >>> gaussian_k(density=0.001)
        gaussian_k(density=0.001)

    Reference: Shi et al., "Understanding Top-k Sparsification in Distributed Deep Learning",
        arXiv 1911.08772.

    Differs from the paper: messages have a fixed capacity.
    """

    density: Density
    scope: Literal["model", "bucket"] = "model"

    def capacity(self, k: int, numel: int) -> int:
        return min(numel, math.ceil(4 * k / 3))

    def select(self, tensor: Tensor, k: int, capacity: int) -> Tensor:
        return evenly(self.search(tensor, k)[0], capacity)

    def search(self, tensor: Tensor, k: int) -> tuple[Tensor, list[int]]:
        """The indices of the last threshold, and how many entries each threshold has found."""
        candidates = Candidates(tensor)
        mean, std = candidates.moments()
        threshold = mean + std * NormalDist().inv_cdf(1 - min(k / tensor.numel(), 1 - 1e-12) / 2)
        counts: list[int] = []
        indices = torch.empty(0, dtype=torch.int64)
        for _ in range(_EVALUATIONS):
            indices = candidates.above(threshold)
            counts.append(indices.numel())
            if counts[-1] < 2 * k / 3:
                threshold *= 0.5
            elif counts[-1] > 4 * k / 3:
                threshold *= 1.5
            else:
                break
        return indices, counts
