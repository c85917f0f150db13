"""What compressors that code some tensors apart from others share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from relaxcomm.errors import CompositionError
from relaxcomm.primitives.compressors.decode import as_dense, finish
from relaxcomm.roles import Coding, Compressor, Context, State
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.layout import Layout, one_tensor
from relaxcomm.tensors.messages import MAXIMUM, MIXED, Message, Several
from relaxcomm.tensors.precision import wide
from relaxcomm.tensors.shards import PieceState, piece_bucket


class ByTensor(Compressor):
    """Codes each tensor with one of two compressors; all that share one are coded together."""

    kinds: ClassVar[frozenset[str]] = frozenset({MIXED})

    @property
    @abstractmethod
    def both(self) -> tuple[Compressor, Compressor]:
        """The two."""

    @abstractmethod
    def choose(self, name: str, numel: int) -> int:
        """Which of the two codes a tensor."""

    def check_both(self) -> None:
        """Refuse compressors of several messages."""
        for one in self.both:
            if one.rounds != 1 or MAXIMUM in one.kinds:
                raise CompositionError(
                    f"{type(self).__name__} takes compressors of one message that ask for no maximum, got "
                    f"{one!r}; give two rules a select each instead"
                )

    @property
    def unbiased(self) -> bool:  # type: ignore[override]  # facts that follow from the parts
        return all(one.unbiased for one in self.both)

    @property
    def keeps_rest(self) -> bool:  # type: ignore[override]
        return any(one.keeps_rest for one in self.both)

    @property
    def builds_on_results(self) -> bool:  # type: ignore[override]
        return any(one.builds_on_results for one in self.both)

    @property
    def follows_clock(self) -> bool:  # type: ignore[override]
        return any(one.follows_clock for one in self.both)

    @property
    def coding_scope(self) -> str:
        return "model" if any(one.coding_scope == "model" for one in self.both) else "tensor"

    def check_optimizer(self, groups: list[dict[str, object]]) -> None:
        for one in self.both:
            one.check_optimizer(groups)

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        slots: dict[str, Tensor] = {}
        for index, layout in self._sorted(bucket.layout):
            made = self.both[index].init(piece_bucket(bucket, layout))
            PieceState(slots, index).update(made)
        return slots

    def code(self, cx: Context, tensor: Tensor, state: State, *, keep_own: bool) -> Coding:
        layout = cx.layout_of(tensor.numel())
        groups = self._sorted(layout)
        codings = [
            self.both[index].code(
                replace(cx, layout=part, place=(*cx.place, index)),
                torch.cat([tensor[:0], *self._views(tensor, layout, index)]),
                PieceState(state, index),
                keep_own=keep_own,
            )
            for index, part in groups
        ]
        parts = yield Several(tuple(next(coding) for coding in codings))
        result, mine = (torch.empty_like(tensor, dtype=wide(tensor.dtype)) for _ in range(2))
        for place, ((index, _), coding) in enumerate(zip(groups, codings, strict=True)):
            value, own = finish(coding, [(weight, _part(message, place)) for weight, message in parts])
            _spread(value, self._views(result, layout, index))
            if own is not None:
                _spread(as_dense(own, value), self._views(mine, layout, index))
        return result, mine if keep_own else None

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return self.layout_bytes(one_tensor(numel), element_bytes)

    def layout_bytes(self, layout: Layout, element_bytes: int) -> int:
        return sum(self.both[i].layout_bytes(part, element_bytes) for i, part in self._sorted(layout))

    def _sorted(self, layout: Layout) -> list[tuple[int, Layout]]:
        """The tensors of each compressor that has any."""
        found = []
        for index in range(2):
            mine = [one for one in layout.spans() if self.choose(one[0], one[1].numel()) == index]
            if mine:
                found.append((index, Layout(tuple(n for n, _, _ in mine), tuple(s for _, s, _ in mine))))
        return found or [(0, one_tensor(0))]

    def _views(self, flat: Tensor, layout: Layout, index: int) -> list[Tensor]:
        return [
            flat[start : start + shape.numel()]
            for name, shape, start in layout.spans()
            if self.choose(name, shape.numel()) == index
        ]


def _spread(flat: Tensor, views: Sequence[Tensor]) -> None:
    """Write entries that lie one tensor behind the other to where the tensors lie."""
    if views:
        torch._foreach_copy_(list(views), list(torch.split(flat, [view.numel() for view in views])))


def _part(message: Message, place: int) -> Message:
    assert isinstance(message, Several), f"expected several messages, got {message!r}"
    return message.messages[place]
