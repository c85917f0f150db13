"""Parameters that were frozen after attach: an outer optimizer's momentum leaves them where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from relaxcomm.tensors.buckets import Bucket

AtRest: TypeAlias = Sequence[tuple[int, Tensor]]
"""Places in a bucket, each with whether no rank has moved its parameter, a scalar on the device."""


def at_rest(bucket: Bucket, delta: Tensor, base: Tensor) -> AtRest:
    """Frozen parameters of a bucket, and whether the combined `delta` from `base` is no more than rounding.

    All ranks see the same delta, so they agree, also where some froze a layer and others did not.
    """
    frozen = [place for place, item in enumerate(bucket.items) if not item.parameter.requires_grad]
    if not frozen:
        return []
    moves, points = bucket.views(delta), bucket.views(base)
    rounding = 4 * torch.finfo(bucket.dtype).eps  # what came late is added to the parameters
    return [(place, moves[place].abs().amax() <= rounding * points[place].abs().amax()) for place in frozen]


def keep_at_rest(bucket: Bucket, resting: AtRest, base: Tensor, value: Tensor) -> None:
    """Let `value` be `base` where a parameter rests, as an optimizer skips what has no gradient."""
    before, after = (bucket.views(base), bucket.views(value)) if resting else ((), ())
    for place, rests in resting:
        after[place].copy_(before[place].where(rests, after[place]))
