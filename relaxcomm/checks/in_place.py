"""What may not be written into: the engine keeps old slots, and the base, until all ranks are well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from relaxcomm.checks.finding import expect
from relaxcomm.roles import is_buffer


class Held:
    """Slots as they are now; buffers, which may be written into, are not among them."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._before = {name: (slot, slot.clone()) for name, slot in state.items() if not is_buffer(name)}

    def written(self) -> list[str]:
        """The slots whose tensors hold something else by now, assigned anew or not."""
        return [
            name
            for name, (slot, before) in self._before.items()
            if not torch.equal(slot.nan_to_num(), before.nan_to_num())
        ]


def expect_assigned(written: list[str]) -> None:
    """Complain of slots that were written into."""
    how = " and ".join(f"state[{name!r}]" for name in written)
    expect(
        not written,
        f"writes into its slots {written} in place, which cannot be taken back; assign a new tensor to {how}",
    )


@contextmanager
def slots_assigned(state: Mapping[str, Tensor]) -> Iterator[None]:
    """Complain if a slot is written into within."""
    held = Held(state)
    yield
    expect_assigned(held.written())
