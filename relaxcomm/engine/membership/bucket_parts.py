"""What compressors keep for each rank's part of a bucket, when there are other ranks: it is cut anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from relaxcomm.carry.slots import Carrier, declared, grown, is_of_part
from relaxcomm.errors import ConfigError
from relaxcomm.roles import is_buffer
from relaxcomm.step.bound import Bound
from relaxcomm.step.kept_slots import Slots
from relaxcomm.step.plan import Task, TaskKey
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


def cut_anew(new: Bound, old: Bound | None, held: Sequence[Rests | None]) -> set[str]:
    """Take over what is kept for parts; names of what nobody can cut, which begins anew.

    Args:
        new: among the ranks now.
        old: before; None for a rank that was not there.
        held: by each rank before; None for one that is lost, and with it what it had left.
    """
    dropped = set()
    for task in in_parts(new):
        slots, cut = new.state.slots[task.key]["compressor"], _Cut(task, new, old, held)
        for slot in [one for one in slots if is_of_part(task, "compressor", one) and not is_buffer(one)]:
            try:
                value = cut.slot(slot)
            except ConfigError:
                dropped.add(f"{slot} of compressor {task.rule.compressor!r}")
            else:
                slots[slot] = slots[slot] if value is None else value.to(slots[slot])
        slots.commit(True)
    return dropped


class _Cut:
    """Cuts the slots of one task."""

    def __init__(self, task: Task, new: Bound, old: Bound | None, held: Sequence[Rests | None]) -> None:
        self._task, self._numel, self._held = task, task.bucket.numel, held
        self._membership = new.world.membership
        self._carrier = Carrier(len(held), self._membership)
        self._before: Slots | None = None if old is None else old.state.slots[task.key]["compressor"]
        self._known = declared(task, "compressor")

    def slot(self, slot: str) -> Tensor | None:
        """Its value; None where it is made anew."""
        part, _, name = slot.partition(".")
        index, owner = int(part), repr(self._task.rule.compressor)
        if index == self._membership.world_size:  # what is left of the mean of this rank's part
            whole = self._carrier.joined(owner, name, self._pieces(name), self._numel)
            return self._carrier.cut(whole, self._numel, self._membership.rank)
        if self._before is None or self._known.get(name) == "fresh":
            return None
        pieces = [self._before[f"{one}.{name}"] for one in range(len(self._held))]
        whole = self._carrier.joined(owner, name, pieces, self._numel)
        now = self._membership.world_size
        kept = grown(whole, self._known.get(name), before=len(self._held), now=now)
        return self._carrier.cut(kept, self._numel, index)

    def _pieces(self, name: str) -> list[Tensor]:
        key, sizes = self._task.key, shard_sizes(self._numel, len(self._held))
        found = {rank: one[key][name] for rank, one in enumerate(self._held) if one is not None}
        rank, one = next(iter(found.items()))
        is_cut = list(one.shape) == [sizes[rank]]
        return [
            found[rank] if rank in found else torch.zeros(size, dtype=one.dtype) if is_cut else one
            for rank, size in enumerate(sizes)
        ]
