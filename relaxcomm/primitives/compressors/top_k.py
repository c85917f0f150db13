"""The largest entries."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from relaxcomm.fields.frozen import frozen
from relaxcomm.fields.schedules import Density, least
from relaxcomm.kernels.dispatch import is_for_kernels
from relaxcomm.primitives.compressors.sparsifier import Sparsifier, num_kept
from relaxcomm.primitives.compressors.threshold_search import Magnitudes


@frozen
class top_k(Sparsifier):
    """The `k = max(floor(density d), 1)` entries of largest size, exactly; the others count as 0.

    `||C(x) - x||^2 <= (1 - k / d) ||x||^2`. Entries of 0 are not sent. Of many entries on a CPU a
    sample suggests a size that somewhat more than k exceed, and the k largest of these are found. Biased: use
    it inside `error_feedback`.

    Args:
        density: fraction of the entries sent, in (0, 1], or a schedule.
        scope: whether k is counted over the whole "model" (what the rule covers; apart for each dtype, and
            where other rules cover a part of it) or over each "bucket".

    Example:
        >>> import torch
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.primitives import top_k
        >>> (arrived,) = round_trip(top_k(density=0.01), [torch.arange(200.0)])
        >>> arrived.nonzero().flatten()
        tensor([198, 199])
    """

    density: Density
    scope: Literal["model", "bucket"] = "model"

    facts = Sparsifier.facts

    def contraction(self, numel: int) -> float | None:
        return 1 - num_kept(least(self.density), numel) / numel if numel else 0.0

    def select(self, sizes: Magnitudes, density: float, capacity: int) -> Tensor:
        k = num_kept(density, sizes.tensor.numel())
        if is_for_kernels(sizes.tensor):
            return torch.topk(sizes.tensor.abs(), k, sorted=False).indices
        return sizes.largest(k)
