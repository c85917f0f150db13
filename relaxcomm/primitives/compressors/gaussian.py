"""Entries beyond a threshold that a normal distribution would put at the wanted density."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Literal

from torch import Tensor

from relaxcomm.frozen import frozen
from relaxcomm.primitives.compressors.sparse import Sparsifier, num_kept
from relaxcomm.primitives.compressors.threshold_search import Magnitudes
from relaxcomm.schedules import Density

_EVALUATIONS = 3


@frozen
class gaussian_k(Sparsifier):
    """The entries with `|x - 0| > t`, `t = mean + std Phi^-1(1 - density / 2)`, refined at most twice.

    With k entries wanted and c found: t halves if `c < 2 k / 3`, grows by a half if `c > 4 k / 3`, and
    is kept otherwise; the third count is the last. A message holds up to `ceil(4 k / 3)` entries:
    the largest of those found; the rest stays in the residual. Much faster than an exact
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

    def select(self, tensor: Tensor, density: float, capacity: int) -> Tensor:
        sizes = Magnitudes(tensor)
        # The search asks only whether a count is far off, and a message holds `capacity` entries: to answer
        # both, the largest entries, some more than that, are listed in one pass.
        low, indices = sizes.more_than(capacity + 1)
        listed = tensor[indices].abs()

        def count(threshold: float) -> float:
            if threshold < 0:  # far from a mean of zero; every entry counts, but those of 0 need no message
                return tensor.numel()
            return math.inf if threshold < low else int((listed > threshold).sum())

        threshold, _ = self.search(count, sizes.moments(), density, tensor.numel())[-1]
        return sizes.largest(indices[listed > threshold], capacity)

    def search(
        self, count: Callable[[float], float], moments: tuple[float, float], density: float, numel: int
    ) -> list[tuple[float, float]]:
        """The thresholds that are tried, each with its count; the last one is taken."""
        (mean, std), k = moments, num_kept(density, numel)
        threshold = mean - std * NormalDist().inv_cdf(density / 2)  # the upper quantile, by symmetry
        tried: list[tuple[float, float]] = []
        for _ in range(_EVALUATIONS):
            tried.append((threshold, count(threshold)))
            if tried[-1][1] < 2 * k / 3:
                threshold *= 0.5
            elif tried[-1][1] > 4 * k / 3:
                threshold *= 1.5
            else:
                break
        return tried
