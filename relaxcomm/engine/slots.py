"""State of primitives: written in a window, kept only if the whole window is good."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping

import torch
from torch import Tensor

from relaxcomm.composition.algorithm import Rule
from relaxcomm.network.transport import Membership
from relaxcomm.roles import is_buffer
from relaxcomm.tensors.buckets import Bucket


class Slots(MutableMapping[str, Tensor]):
    """The slots of one primitive for one bucket; assignments wait for `commit`."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self._kept = dict(values)
        self._staged: dict[str, Tensor] = {}

    def __getitem__(self, slot: str) -> Tensor:
        return self._staged[slot] if slot in self._staged else self._kept[slot]

    def __setitem__(self, slot: str, value: Tensor) -> None:
        if slot not in self._kept:
            raise KeyError(f"slot {slot!r} was not made by init, which made {sorted(self._kept)}")
        self._staged[slot] = value

    def __delitem__(self, slot: str) -> None:
        raise TypeError("slots live as long as the rule")

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def export(self) -> dict[str, Tensor]:
        """A copy of every slot."""
        return {slot: self[slot].clone() for slot in self if not is_buffer(slot)}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Put exported values back."""
        for slot, value in saved.items():
            self[slot] = value.to(self[slot].device).clone()
        self.commit(True)

    def commit(self, good: bool | Tensor) -> None:
        """Keep what was assigned if `good`; a tensor decides on its device, without waiting for it."""
        for slot, value in self._staged.items():
            if isinstance(good, Tensor):
                self._kept[slot] = torch.where(good, value, self._kept[slot])
            elif good:
                self._kept[slot] = value
        self._staged.clear()


class RuleState:
    """The slots of all primitives of one rule for one bucket.

    Args:
        rule: whose primitives.
        bucket: the bucket.
        membership: of the ranks among whom parts may be shared out.
    """

    def __init__(self, rule: Rule, bucket: Bucket, membership: Membership) -> None:
        coding = rule.exchange.coding_slots(bucket, rule.compressor, membership)
        others = {role: made for role, made in rule.primitives.items() if role != "compressor"}
        self.roles = {role: Slots(made.init(bucket)) for role, made in others.items()}
        self.roles["compressor"] = Slots(coding)

    def __getitem__(self, role: str) -> Slots:
        return self.roles[role]

    def commit(self, good: bool | Tensor) -> None:
        """Keep or drop the assignments of all primitives."""
        for slots in self.roles.values():
            slots.commit(good)

    def export(self) -> dict[str, dict[str, Tensor]]:
        """A copy of every slot by role and name."""
        exported = {role: slots.export() for role, slots in self.roles.items()}
        return {role: slots for role, slots in exported.items() if slots}

    def restore(self, saved: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Put exported slots back."""
        for role, slots in saved.items():
            self.roles[role].restore(slots)
