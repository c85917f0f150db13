"""What compressors keep for each rank's part of a bucket, when there are other ranks: it is cut anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from relaxcomm.carry.slots import Carrier, declared, grown, is_of_part
from relaxcomm.errors import CompositionWarning, ConfigError
from relaxcomm.roles import is_buffer
from relaxcomm.step.bound import Bound
from relaxcomm.step.kept_slots import Slots
from relaxcomm.step.plan import Task, TaskKey
from relaxcomm.system.warn import warn
from relaxcomm.tensors.shards import shard_sizes

Rests: TypeAlias = Mapping[TaskKey, Mapping[str, Tensor]]
"""What a rank has left to send of the mean of its part, by rule, bucket and slot."""


def in_parts(bound: Bound) -> list[Task]:
    """The tasks whose compressors keep something for each rank's part."""
    kept, tasks = bound.state.slots, bound.plan.every_task
    return [one for one in tasks if one.key in kept and one.rule.exchange.facts.codes_parts]


def rests(bound: Bound) -> dict[TaskKey, dict[str, Tensor]]:
    """What this rank has left to send of the mean of its part, by task."""
    own = f"{bound.world.size}."
    return {
        task.key: {
            slot.removeprefix(own): value
            for slot, value in bound.state.slots[task.key]["compressor"].items()
            if slot.startswith(own) and not is_buffer(slot)
        }
        for task in in_parts(bound)
    }


def cut_anew(new: Bound, old: Bound | None, held: Sequence[Rests | None]) -> None:
    """Take over what is kept for parts; what nobody can cut begins anew, with a warning.

    Args:
        new: among the ranks now.
        old: before; None for a rank that was not there.
        held: by each rank before; None for one that is lost, and with it what it had left.
    """
    carrier, dropped = Carrier(len(held), new.world.membership), set[str]()
    for task in in_parts(new):
        slots = new.state.slots[task.key]["compressor"]
        before = None if old is None else old.state.slots[task.key]["compressor"]
        for slot in [one for one in slots if is_of_part(task, "compressor", one) and not is_buffer(one)]:
            try:
                value = _cut(carrier, task, before, held, slot)
            except ConfigError:
                value = None
                dropped.add(f"{slot} of compressor {task.rule.compressor!r}")
            if value is not None:
                slots[slot] = value.to(slots[slot])
        slots.commit(True)
    if dropped:
        warn(
            f"{', '.join(sorted(dropped))} begins anew: nobody can cut it for other ranks",
            CompositionWarning,
        )


def _cut(
    carrier: Carrier, task: Task, before: Slots | None, held: Sequence[Rests | None], slot: str
) -> Tensor | None:
    """What a slot holds now; None where it is made anew."""
    part, _, name = slot.partition(".")
    owner, numel, size = repr(task.rule.compressor), task.bucket.numel, carrier.membership.world_size
    if int(part) == size:  # what is left of the mean of this rank's part
        whole = carrier.joined(owner, name, _pieces(task, held, name), numel)
        return carrier.cut(whole, numel, carrier.membership.rank)
    how = declared(task, "compressor").get(name)
    if before is None or how == "fresh":
        return None
    pieces = [before[f"{one}.{name}"] for one in range(carrier.before)]
    whole = grown(carrier.joined(owner, name, pieces, numel), how, before=carrier.before, now=size)
    return carrier.cut(whole, numel, int(part))


def _pieces(task: Task, held: Sequence[Rests | None], name: str) -> list[Tensor]:
    """What each rank before had left of the mean of its part; nothing of one that is lost."""
    sizes = shard_sizes(task.bucket.numel, len(held))
    found = {rank: one[task.key][name] for rank, one in enumerate(held) if one is not None}
    rank, one = next(iter(found.items()))
    is_cut = list(one.shape) == [sizes[rank]]
    return [
        found[rank] if rank in found else torch.zeros(size, dtype=one.dtype) if is_cut else one
        for rank, size in enumerate(sizes)
    ]
