"""Parameters that were frozen after attach: momentum and memories leave them where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from relaxcomm.step.bound import Bound
from relaxcomm.step.device_flags import DeviceAnswer
from relaxcomm.step.plan import Task
from relaxcomm.step.state import RuleState
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.finiteness import largest_entries
from relaxcomm.tensors.host_copies import on_device

_AT_REST = "frozen parameters"

AtRest: TypeAlias = Sequence[tuple[int, Tensor]]
"""Places in a bucket, each with whether momentum leaves the parameter where it is, a scalar on the device."""


def agree_on_rest(bound: Bound, combined: Sequence[tuple[Task, Tensor]]) -> list[AtRest]:
    """Which frozen parameters rest, where all ranks average what they have moved in the same step.

    One rests if every rank has frozen it and the combined delta is 0 in each entry, so that nothing is lost
    that was moved before it was frozen. All say the same, or replicas would part. Where no parameter stands
    still on a CPU all see that, and nobody is asked.

    Args:
        bound: the algorithm on a model.
        combined: tasks, with the deltas that their exchanges have brought.

    Returns: of each what `keep_at_rest` takes.
    """
    asked = [(task, delta) for task, delta in combined if _is_agreed_on(bound, task)]
    agreed = iter(_agree(bound, asked) if asked else ())
    return [next(agreed) if _is_agreed_on(bound, task) else () for task, _ in combined]


def at_rest_alone(task: Task, delta: Tensor, base: Tensor | None) -> AtRest:
    """The same where each rank has a base of its own, which the parameter has not left: neither by this
    rank's steps nor, but for rounding, by the combined `delta`.
    """
    bucket = task.bucket
    if base is None or task.rule.payload.facts.is_move:
        return ()
    moves, points = bucket.views(delta), bucket.views(base)
    rounding = 4 * torch.finfo(bucket.dtype).eps  # such a delta is made of parameters
    return [
        (
            place,
            (moves[place].abs().amax() <= rounding * points[place].abs().amax())
            & (bucket.items[place].tensor.detach() == points[place].to(bucket.dtype)).all(),
        )
        for place in _frozen(bucket)
    ]


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


def trained_flags(bucket: Bucket, gradients: Sequence[Tensor]) -> Tensor:
    """Whether parameters are trained here: they are not frozen, or have a gradient other than zero; 1 or 0
    each, on their device.
    """
    flags = torch.ones(len(bucket.items), device=bucket.device)
    for place in _frozen(bucket):
        flags[place] = gradients[place].any()
    return flags


def clear_frozen(bucket: Bucket, gradients: Sequence[Tensor], trained: Tensor) -> None:
    """Let no result move what no rank trains: a compressor's memory, or the sign of zero, may make one.

    Args:
        bucket: of parameters.
        gradients: the results.
        trained: 0 where no rank trains one, `[len(bucket.items)]`.
    """
    for place in _frozen(bucket):
        gradients[place].masked_fill_(trained[place] == 0, 0)


def keep_at_rest(bucket: Bucket, resting: AtRest, base: Tensor | None, value: Tensor) -> None:
    """Let `value` be `base` where a parameter rests, as an optimizer skips what has no gradient."""
    if base is None or not resting:
        return
    before, after = bucket.views(base), bucket.views(value)
    for place, rests in resting:
        after[place].copy_(before[place].where(rests, after[place]))


def _is_agreed_on(bound: Bound, task: Task) -> bool:
    """Whether all ranks apply the same delta to the same base in the same step, by an outer with a memory."""
    rule, exchange = task.rule, task.rule.exchange.facts
    return (
        rule.payload.facts.has_base
        and rule.payload.facts.is_move
        and exchange.collective
        and rule.delay != "unbounded"
        and bool(bound.state.of(task)["outer"])
    )


def _agree(bound: Bound, asked: Sequence[tuple[Task, Tensor]]) -> list[AtRest]:
    moving, world = torch.cat([_moved(task.bucket, delta) for task, delta in asked]), bound.world
    on_gpu = moving.device.type == "cuda"
    if not (on_gpu or world.is_sharded) and moving.all():
        return [()] * len(asked)
    trained = [item.parameter.requires_grad for task, _ in asked for item in task.bucket.items]
    moving = moving + on_device(torch.tensor(trained, dtype=moving.dtype), moving.device)
    if on_gpu:
        moving = DeviceAnswer.ask(world, _AT_REST, moving, bound.common_step).read()
    else:
        moving = bound.agreements.decide(_AT_REST, moving, bound.common_step, "sum")
    sizes = [len(task.bucket.items) for task, _ in asked]
    return [
        [(place, rests[place]) for place in _frozen(task.bucket)]
        for (task, _), rests in zip(asked, torch.split(moving == 0, sizes), strict=True)
    ]


def _moved(bucket: Bucket, delta: Tensor) -> Tensor:
    """Whether a delta has an entry of each parameter other than 0, 1 or 0 each, on its device."""
    nothing = delta.new_zeros(1)  # a shard may have none of a parameter
    sizes = [item.tensor.numel() for item in bucket.items]
    parts = [
        delta[at : at + size] if size else nothing for at, size in zip(bucket.offsets, sizes, strict=True)
    ]
    if delta.device.type == "cuda":
        return (largest_entries(parts) != 0).float()
    # Most have moved, and show it in their first entry.
    moved = [bool(part[0] or part.any()) for part in parts]
    return torch.tensor(moved, dtype=torch.float32)


def _frozen(bucket: Bucket) -> list[int]:
    """Where they lie; a shard may have none of one."""
    return [
        place
        for place, item in enumerate(bucket.items)
        if not item.parameter.requires_grad and item.tensor.numel()
    ]
