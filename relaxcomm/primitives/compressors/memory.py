"""What compressors with a memory of what they left out have in common."""

from __future__ import annotations

import torch
from torch import Tensor

from relaxcomm.errors import CompositionError
from relaxcomm.primitives.compressors.weighted_sum import add_sparse
from relaxcomm.roles import Compressor, State
from relaxcomm.roles.carried import Carried, nested
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.layout import Layout
from relaxcomm.tensors.messages import Sparse
from relaxcomm.tensors.shards import NestedState
from relaxcomm.tensors.unshared import UnsharedState

_INNER = 0


class Memory(Compressor):
    """A compressor around one other: facts and slots of the inner one."""

    compressor: Compressor

    @property
    def without_memory(self) -> Compressor:
        return self.compressor.without_memory

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return self.compressor.message_bytes(numel, element_bytes)

    def layout_bytes(self, layout: Layout, element_bytes: int) -> int:
        return self.compressor.layout_bytes(layout, element_bytes)

    def inner_slots(self, bucket: Bucket) -> dict[str, Tensor]:
        """The inner compressor's slots, to stand beside one's own."""
        slots: dict[str, Tensor] = {}
        NestedState(slots, _INNER).update(self.compressor.init(bucket))
        return slots

    @property
    def inner_carried(self) -> dict[str, Carried]:
        """What becomes of the inner compressor's slots, to stand beside one's own."""
        return nested(_INNER, self.compressor.facts.slots)

    def check_alone(self) -> None:
        """Refuse an inner compressor that keeps a residual."""
        if self.compressor.facts.memory != "none":
            raise CompositionError(
                f"{type(self).__name__} around {self.compressor!r} would keep entries twice; use one of them"
            )


def subtract(tensor: Tensor, sent: Tensor | Sparse) -> Tensor:
    """Take what a message decodes to out of a tensor; in place, unless that is what was sent."""
    if isinstance(sent, Tensor):
        return torch.sub(tensor, sent, out=None if sent is tensor else tensor)
    add_sparse(tensor, sent, -1.0)
    return tensor


def inner_state(state: State, lent: Tensor) -> State:
    """The slots of the inner compressor among those of the outer one, whose memory it codes."""
    return UnsharedState(NestedState(state, _INNER), lent)
