"""The slots of one rule on one bucket, for another number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from relaxcomm.carry.means import mean, same, shares
from relaxcomm.errors import ConfigError
from relaxcomm.network.transport import Membership
from relaxcomm.roles import is_buffer
from relaxcomm.roles.carried import ALIKE, Carried, Slots, nested
from relaxcomm.step.plan import Task
from relaxcomm.tensors.shards import shard_sizes, shards_of

Held: TypeAlias = Mapping[str, Tensor]
"""The slots of one primitive on one rank."""


def is_of_part(task: Task, role: str, slot: str) -> bool:
    """Whether it is one of the compressor's for a rank's part, and none of the exchange's own."""
    exchange = task.rule.exchange.facts
    return role == "compressor" and exchange.codes_parts and slot not in exchange.slots


def policies(task: Task, role: str) -> Slots:
    """What becomes of the slots of a primitive, which each rank has as a whole, with other ranks."""
    known, exchange = declared(task, role), task.rule.exchange.facts
    if role != "compressor":
        return known
    return {**exchange.slots, **(nested(0, known) if exchange.coding == "inner" else known)}


def declared(task: Task, role: str) -> Slots:
    """What a primitive says of its own slots."""
    slots: Slots = task.rule.primitives[role].facts.slots
    return slots


def grown(value: Tensor, how: Carried | None, *, before: int, now: int) -> Tensor:
    """A share where ranks join, which have none yet: of all shares only the mean over the ranks counts.

    Args:
        value: of the slot.
        how: what becomes of it.
        before, now: number of ranks.

    Example:
        >>> grown(torch.tensor([3, -100], dtype=torch.int8), "share", before=2, now=3)
        tensor([   4, -128], dtype=torch.int8)
    """
    if how != "share" or now <= before:
        return value
    if value.is_floating_point() or value.is_complex():
        return value * (now / before)
    whole = torch.iinfo(value.dtype)  # such as residuals of 8 bits
    return (value.double() * (now / before)).round().clamp(whole.min, whole.max).to(value.dtype)


def _part_of_sum(held: Sequence[Tensor], new: Membership) -> Tensor:
    """What a new rank takes of whole numbers, such as counts, whose sum stays.

    Example:
        >>> [int(_part_of_sum([torch.tensor(5), torch.tensor(8)], Membership(rank, 3))) for rank in range(3)]
        [3, 5, 5]
    """
    wide = torch.stack(list(held)).double()

    def before(rank: int) -> Tensor:  # on the line on which `shares` has old and new ranks
        end = rank * len(held) / new.world_size
        parts = [one * min(1.0, max(0.0, end - old)) for old, one in enumerate(wide)]
        return torch.stack(parts).sum(0).round()

    return (before(new.rank + 1) - before(new.rank)).to(held[0].dtype)


@dataclass(frozen=True)
class Carrier:
    """Carries slots to one of the new ranks.

    Args:
        before: number of old ranks.
        membership: the new rank.
    """

    before: int
    membership: Membership

    def of_task(self, task: Task, role: str, olds: Sequence[Held], fresh: Held) -> dict[str, Tensor]:
        """The slots of one primitive of a rule on a bucket.

        Args:
            task: the rule and the bucket.
            role: of the primitive.
            olds: of each old rank.
            fresh: as they are made for the new one, which says which there are.

        Raises: ConfigError for slots that cannot be carried.
        """
        kept = {slot: value for slot, value in fresh.items() if not is_buffer(slot)}
        owner, exchange = task.rule.primitives[role], task.rule.exchange
        who = f"{exchange!r} and {owner!r}" if role == "compressor" else repr(owner)
        parts = {slot: value for slot, value in kept.items() if is_of_part(task, role, slot)}
        wholes = {slot: value for slot, value in kept.items() if slot not in parts}
        same, known = exchange.facts.same_result, policies(task, role)
        made = self.wholes(who, known, olds, wholes, same_result=same)
        return made | self._parts(repr(owner), declared(task, role), task.bucket.numel, olds, parts)

    def one(
        self, owner: str, slot: str, how: Carried | None, held: Sequence[Tensor], *, same_result: bool = True
    ) -> Tensor:
        """A slot that each rank has as a whole.

        Args:
            owner: whose, for errors.
            slot: its name.
            how: what becomes of it; None if nobody has said.
            held: by each old rank.
            same_result: whether the ranks were given the same results.

        Raises: ConfigError if it cannot be carried.
        """
        if how not in ALIKE | {"mean", "share", "sum"}:
            raise self._error(owner, slot, "its facts' slots do not say what becomes of it")
        if how in ALIKE and same_result and not all(same(other, held[0]) for other in held):
            raise self._error(owner, slot, "it differs between the ranks")
        if how in ALIKE or how == "mean":
            return mean(held)
        if how == "sum" and not (held[0].is_floating_point() or held[0].is_complex()):
            return _part_of_sum(held, self.membership)
        taken = mean(held, shares(self.before, self.membership))
        return taken if how == "share" else taken * (self.before / self.membership.world_size)

    def joined(self, owner: str, slot: str, pieces: Sequence[Tensor], numel: int) -> Tensor:
        """What lies in pieces, one of each old rank's part; or what is the same for all parts.

        Raises: ConfigError if it is neither.
        """
        sizes = [list(piece.shape) for piece in pieces]
        if sizes == [[size] for size in shard_sizes(numel, self.before)]:
            return torch.cat(list(pieces))
        if all(same(piece, pieces[0]) for piece in pieces):
            return pieces[0]
        raise self._error(owner, slot, f"its parts are {sizes}, which nobody can cut anew")

    def cut(self, whole: Tensor, numel: int, index: int) -> Tensor:
        """The piece of a new rank's part of what lies in pieces, or what is the same for all parts."""
        if list(whole.shape) != [numel]:
            return whole
        return shards_of(whole, self.membership.world_size)[index][1]

    def wholes(
        self, owner: str, known: Slots, olds: Sequence[Held], fresh: Held, *, same_result: bool = True
    ) -> dict[str, Tensor]:
        """Slots that each rank has as a whole, with what becomes of each."""
        return {
            slot: value
            if known.get(slot) == "fresh"
            else self.one(owner, slot, known.get(slot), [old[slot] for old in olds], same_result=same_result)
            for slot, value in fresh.items()
        }

    def _parts(
        self, owner: str, coder: Slots, numel: int, olds: Sequence[Held], fresh: Held
    ) -> dict[str, Tensor]:
        """Slots of which there is a set for each rank's part of a bucket, and perhaps of this one's mean."""
        wholes: dict[str, Tensor] = {}
        made: dict[str, Tensor] = {}
        for slot, value in fresh.items():
            part, _, name = slot.partition(".")
            index = int(part)
            if index == self.membership.world_size:  # what each rank has left of the mean of its part
                pieces = [old[f"{self.before}.{name}"] for old in olds]
                made[slot] = self.cut(self.joined(owner, name, pieces, numel), numel, self.membership.rank)
            elif coder.get(name) == "fresh":
                made[slot] = value
            else:
                if name not in wholes:
                    parts = [[old[f"{one}.{name}"] for one in range(self.before)] for old in olds]
                    held = [self.joined(owner, name, theirs, numel) for theirs in parts]
                    wholes[name] = self.one(owner, name, coder.get(name), held)
                made[slot] = self.cut(wholes[name], numel, index)
        return made

    def _error(self, owner: str, slot: str, why: str) -> ConfigError:
        return ConfigError(
            f"the state of {self.before} workers cannot be carried to {self.membership.world_size}: "
            f"{slot!r} of {owner}: {why}; start {self.before} workers"
        )
