"""Parameters that were frozen after attach: momentum and memories leave them where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import TypeAlias

import torch
from torch import Tensor

from relaxcomm.network.transport import Membership
from relaxcomm.roles import is_buffer
from relaxcomm.step.bound import Bound
from relaxcomm.step.kept_slots import Slots
from relaxcomm.step.plan import Task
from relaxcomm.step.state import RuleState
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.finiteness import largest_entries
from relaxcomm.tensors.host_copies import on_device
from relaxcomm.tensors.shards import shard_sizes

_requires_grad = attrgetter("requires_grad")
_AT_REST = "frozen parameters"

AtRest: TypeAlias = Sequence[tuple[int, Tensor]]
"""Indices in a bucket, and whether momentum leaves the parameter where it is, a scalar on the device."""

HeldBack: TypeAlias = Mapping[str, Sequence[tuple[int, slice, Tensor]]]
"""By slot, frozen parameters: the index in a bucket, the entries in the slot, and what they have held."""


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
            index,
            (moves[index].abs().amax() <= rounding * points[index].abs().amax())
            & (bucket.items[index].tensor == points[index].to(bucket.dtype)).all(),
        )
        for index in _frozen(bucket)
    ]


def hold_residuals_back(task: Task, slots: RuleState, membership: Membership) -> HeldBack:
    """Take what is left to send for frozen parameters out of the slots: nobody would apply it now.

    Returns: what `put_residuals_back` gives back.
    """
    bucket, coding = task.bucket, slots["compressor"]
    frozen = _frozen(bucket)
    held: dict[str, list[tuple[int, slice, Tensor]]] = {}
    for slot, start in _residuals(task, coding, membership) if frozen else ():
        kept, left = coding[slot], coding[slot].clone()
        held[slot] = []
        for index in frozen:
            begin = bucket.offsets[index] - start  # of what may lie in the slot in part, or not at all
            span = slice(max(0, begin), max(0, begin + bucket.items[index].tensor.numel()))
            held[slot].append((index, span, kept[span]))
            left[span] = 0
        coding[slot] = left
    return held


def put_residuals_back(slots: RuleState, held: HeldBack, trained: Tensor) -> None:
    """Keep what was held back for when the parameters are trained again.

    Args:
        slots: as the exchange has left them. Where no rank trains one nothing is moved, so it owes nothing.
        held: what `hold_residuals_back` has returned.
        trained: 0 where no rank trains one, `[len(bucket.items)]`.
    """
    coding = slots["compressor"]
    for slot, parts in held.items():
        now = coding[slot].clone()
        for index, span, kept in parts:
            now[span] = torch.where(trained[index] == 0, kept, kept + now[span])
        coding[slot] = now


def trained_flags(bucket: Bucket, gradients: Sequence[Tensor], ones: Tensor) -> Tensor:
    """Whether parameters are trained here: they are not frozen, or have a gradient other than zero; 1 or 0
    each, on their device. These are the ones that are given, `[len(bucket.items)]`, where none is frozen.
    """
    frozen = _frozen(bucket)
    flags = ones.clone() if frozen else ones
    for index in frozen:
        flags[index] = gradients[index].any()
    return flags


def clear_frozen(bucket: Bucket, gradients: Sequence[Tensor], trained: Tensor) -> None:
    """Let no result move what no rank trains: a compressor's memory, or the sign of zero, may make one.

    Args:
        bucket: of parameters.
        gradients: the results.
        trained: 0 where no rank trains one, `[len(bucket.items)]`.
    """
    for index in _frozen(bucket):
        gradients[index].masked_fill_(trained[index] == 0, 0)


def keep_at_rest(bucket: Bucket, resting: AtRest, base: Tensor | None, value: Tensor) -> Tensor:
    """`value`, but `base` where a parameter rests, as an optimizer skips what has no gradient."""
    if base is None or not resting:
        return value
    value = value.clone()  # the outer may keep what it has returned
    before, after = bucket.views(base), bucket.views(value)
    for index, rests in resting:
        after[index].copy_(before[index].where(rests, after[index]))
    return value


def _is_agreed_on(bound: Bound, task: Task) -> bool:
    """Whether all ranks apply the same delta to the same base in the same step, by an outer with a memory."""
    payload = task.rule.payload.facts
    return (
        payload.has_base
        and payload.is_move
        and task.rule.exchange.facts.collective
        and bool(bound.state.of(task)["outer"])
    )


def _agree(bound: Bound, asked: Sequence[tuple[Task, Tensor]]) -> list[AtRest]:
    moving, world = torch.cat([_moved(task.bucket, delta) for task, delta in asked]), bound.world
    if not (moving.device.type == "cuda" or world.is_sharded) and moving.all():
        return [()] * len(asked)
    trained = [item.parameter.requires_grad for task, _ in asked for item in task.bucket.items]
    moving = moving + on_device(torch.tensor(trained, dtype=moving.dtype), moving.device)
    total = bound.agreements.ask_where_it_lies(_AT_REST, moving, bound.common_step)
    bound.agreements.send(bound.common_step)
    sizes = [len(task.bucket.items) for task, _ in asked]
    return [
        [(index, rests[index]) for index in _frozen(task.bucket)]
        for (task, _), rests in zip(asked, torch.split(total.read() == 0, sizes), strict=True)
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
    if all(map(_requires_grad, bucket.parameters)):  # as a rule, and asked many times a step
        return []
    return [
        index
        for index, item in enumerate(bucket.items)
        if not item.parameter.requires_grad and item.tensor.numel()
    ]


def _residuals(task: Task, coding: Slots, membership: Membership) -> list[tuple[str, int]]:
    """The slots of what is left to send, entry by entry, each with where in the bucket it begins."""
    slots, numel = task.rule.compressor.facts.slots, task.bucket.numel
    shares = [slot for slot, carried in slots.items() if carried == "share"]
    lies = task.rule.exchange.facts.coding
    if lies in ("whole", "inner"):
        found = [(slot if lies == "whole" else f"0.{slot}", 0, numel) for slot in shares]
    else:
        sizes, last = shard_sizes(numel, membership.world_size), f"{membership.world_size}."
        parts = list(zip(accumulate(sizes, initial=0), sizes, strict=False))
        found = [(f"{index}.{slot}", *part) for index, part in enumerate(parts) for slot in shares]
        # What codes the mean of this rank's part keeps nothing of each entry but what that leaves out.
        of_mean = [slot for slot in coding if slot.startswith(last) and not is_buffer(slot)]
        found += [(slot, *parts[membership.rank]) for slot in of_mean]
    return [(slot, at) for slot, at, size in found if slot in coding and coding[slot].shape == (size,)]
