"""The slots of one primitive: what it assigns is kept only if the whole window is good."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping

import torch
from torch import Tensor

from relaxcomm.errors import PluginError
from relaxcomm.roles import is_buffer
from relaxcomm.tensors.shards import joined, joined_view


class Slots(MutableMapping[str, Tensor]):
    """The slots of one primitive for one bucket; assignments wait for `commit`.

    Args:
        values: what `init` made.
        owner: whose they are, for errors.
    """

    def __init__(self, values: Mapping[str, Tensor], owner: str) -> None:
        self._kept, self.owner = dict(values), owner
        for slot, value in self._kept.items():
            if not isinstance(value, Tensor):
                raise PluginError(f"init of {owner} made {value!r} as the slot {slot!r}; make a tensor")
        self._staged: dict[str, Tensor] = {}

    def __getitem__(self, slot: str) -> Tensor:
        held = self._staged if slot in self._staged else self._kept
        if slot not in held:
            raise self._unknown(slot)
        return held[slot]

    def __setitem__(self, slot: str, value: Tensor) -> None:
        if slot not in self._kept:
            raise self._unknown(slot)
        made = self._kept[slot]
        is_like = isinstance(value, Tensor) and value.shape == made.shape and value.dtype == made.dtype
        if not is_like and not is_buffer(slot):  # a checkpoint of it could not be loaded
            got = _form(value) if isinstance(value, Tensor) else repr(value)
            raise PluginError(
                f"{self.owner} set its slot {slot!r} to {got}, and init made {_form(made)}; a slot keeps "
                "its shape and dtype, so make it in init as it will be, or convert what is assigned"
            )
        self._staged[slot] = value

    def __delitem__(self, slot: str) -> None:
        raise TypeError("slots live as long as the rule")

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def saved(self) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        return {slot: self[slot] for slot in self if not is_buffer(slot)}

    def export(self) -> dict[str, Tensor]:
        """A copy of it, on the host: a GPU that holds a run may have no room for one."""
        return {slot: value.to("cpu", copy=True) for slot, value in self.saved.items()}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Put exported values back."""
        for slot, value in saved.items():
            self[slot] = value.to(self[slot].device, copy=True)
        self.commit(True)

    def commit(self, good: bool | Tensor) -> None:
        """Keep what was assigned if `good`; a tensor decides on its device, without waiting for it."""
        if isinstance(good, Tensor):
            for slots in self._staged_together():
                values, kept = (joined([held[slot] for slot in slots]) for held in (self._staged, self._kept))
                chosen = torch.where(good, values, kept)
                sizes = [self._staged[slot].numel() for slot in slots]
                each = torch.split(chosen, sizes) if len(slots) > 1 else [chosen]
                self._staged.update(zip(slots, each, strict=True))
        if isinstance(good, Tensor) or good:
            self._kept.update(self._staged)
        self._staged.clear()

    def _unknown(self, slot: str) -> KeyError:
        made = sorted(self._kept) or "none"
        return KeyError(f"{self.owner} has no slot {slot!r}; make it in init, which has made {made}")

    def _staged_together(self) -> Iterator[list[str]]:
        """Slots that were assigned, but for buffers, of which nothing needs to be chosen: those together that
        lie one behind the other, as of the shards of a tensor.
        """
        slots: list[str] = []
        for slot in [one for one in self._staged if not is_buffer(one)]:
            if slots and joined_view([self._staged[slots[-1]], self._staged[slot]]) is None:
                yield slots
                slots = []
            slots.append(slot)
        if slots:
            yield slots


def _form(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {tensor.dtype}"
