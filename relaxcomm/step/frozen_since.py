"""Parameters that were frozen after attach: momentum leaves them where they are, and no residual is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from relaxcomm.step.plan import Task
from relaxcomm.step.state import RuleState
from relaxcomm.tensors.buckets import Bucket

AtRest: TypeAlias = Sequence[tuple[int, Tensor]]
"""Places in a bucket, each with whether no rank has moved its parameter, a scalar on the device."""


def at_rest(bucket: Bucket, delta: Tensor, base: Tensor) -> AtRest:
    """Frozen parameters of a bucket, and whether the combined `delta` from `base` is no more than rounding.

    All ranks see the same delta, so they agree, also where some froze a layer and others did not.
    """
    frozen = _frozen(bucket)
    if not frozen:
        return []
    moves, points = bucket.views(delta), bucket.views(base)
    rounding = 4 * torch.finfo(bucket.dtype).eps  # what came late is added to the parameters
    return [(place, moves[place].abs().amax() <= rounding * points[place].abs().amax()) for place in frozen]


def hold_residuals_back(task: Task, slots: RuleState) -> Mapping[str, Tensor]:
    """Take what is left to send for frozen parameters out of the slots: nobody would apply it now.

    Returns: what `put_residuals_back` gives back, by slot.
    """
    rule, bucket = task.rule, task.bucket
    if not task.sends_residuals or rule.delay or rule.exchange.facts.coding != "whole":
        return {}
    frozen, held = _frozen(bucket), {}
    for slot, carried in rule.compressor.facts.slots.items() if frozen else ():
        kept = slots["compressor"][slot]
        if carried == "share" and kept.numel() == bucket.numel:
            held[slot], left = kept, kept.clone()
            for place in frozen:
                bucket.views(left)[place].zero_()
            slots["compressor"][slot] = left
    return held


def put_residuals_back(bucket: Bucket, slots: RuleState, held: Mapping[str, Tensor]) -> None:
    """Keep what was held back for when the parameters are trained again."""
    frozen = _frozen(bucket) if held else []
    for slot, kept in held.items():
        now = slots["compressor"][slot].clone()
        for place in frozen:
            bucket.views(now)[place].copy_(bucket.views(kept)[place])
        slots["compressor"][slot] = now


def keep_at_rest(bucket: Bucket, resting: AtRest, base: Tensor, value: Tensor) -> None:
    """Let `value` be `base` where a parameter rests, as an optimizer skips what has no gradient."""
    before, after = (bucket.views(base), bucket.views(value)) if resting else ((), ())
    for place, rests in resting:
        after[place].copy_(before[place].where(rests, after[place]))


def _frozen(bucket: Bucket) -> list[int]:
    """Where they lie; a shard may have none of one."""
    return [
        place
        for place, item in enumerate(bucket.items)
        if not item.parameter.requires_grad and item.tensor.numel()
    ]
