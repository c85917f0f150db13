"""What compressors with a memory of what they left out have in common."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from relaxcomm.errors import CompositionError
from relaxcomm.roles import Compressor, State
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.layout import Layout
from relaxcomm.tensors.messages import Sparse
from relaxcomm.tensors.shards import PieceState

_INNER = 0


class Memory(Compressor):
    """A compressor around one other: facts and slots of the inner one."""

    compressor: Compressor

    keeps_rest: ClassVar[bool] = True

    @property
    def kinds(self) -> frozenset[str]:  # type: ignore[override]  # facts that are the inner one's
        return self.compressor.kinds

    @property
    def rounds(self) -> int:  # type: ignore[override]
        return self.compressor.rounds

    @property
    def plain(self) -> Compressor:
        return self.compressor.plain

    @property
    def builds_on_results(self) -> bool:  # type: ignore[override]
        return self.compressor.builds_on_results

    @property
    def follows_clock(self) -> bool:  # type: ignore[override]
        return self.compressor.follows_clock

    @property
    def coding_scope(self) -> str:
        return self.compressor.coding_scope

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return self.compressor.message_bytes(numel, element_bytes)

    def layout_bytes(self, layout: Layout, element_bytes: int) -> int:
        return self.compressor.layout_bytes(layout, element_bytes)

    def inner_slots(self, bucket: Bucket) -> dict[str, Tensor]:
        """The inner compressor's slots, to stand beside one's own."""
        slots: dict[str, Tensor] = {}
        PieceState(slots, _INNER).update(self.compressor.init(bucket))
        return slots

    def check_alone(self) -> None:
        """Refuse an inner compressor that keeps a residual."""
        if self.compressor.keeps_rest:
            raise CompositionError(
                f"{type(self).__name__} around {self.compressor!r} would keep entries twice; use one of them"
            )


def subtract(tensor: Tensor, own: Tensor | Sparse) -> Tensor:
    """Take what a message decodes to out of a tensor, in place."""
    if isinstance(own, Tensor):
        return tensor.sub_(own)
    own.add_to(tensor, -1.0)
    return tensor


def inner_state(state: State) -> State:
    """The slots of the inner compressor among those of the outer one."""
    return PieceState(state, _INNER)
