"""What compressors with a memory of what they left out have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from relaxcomm.errors import CompositionError
from relaxcomm.primitives.compressors.weighted_sum import add_sparse
from relaxcomm.roles import Compressor, CompressorFacts, State
from relaxcomm.roles.carried import Slots, nested
from relaxcomm.roles.compressor import widest
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.layout import Layout
from relaxcomm.tensors.messages import Sparse
from relaxcomm.tensors.shards import NestedState
from relaxcomm.tensors.unshared import UnsharedState

_INNER = 0


class Memory(Compressor):
    """A compressor around one other, whose messages it makes of more than the tensor.

    It has the other's facts and bytes, and beside slots of its own those of the other.

    Example:
        >>> import torch
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.plugin import Compressor, Memory, frozen, inner_slots, inner_state
        >>> from relaxcomm.primitives import identity
        >>> @frozen
        ... class changes(Memory):
        ...     compressor: Compressor
        ...     facts = property(lambda self: self.facts_around({"last": "fresh"}, unbiased=False))
        ...     def init(self, bucket):
        ...         return {"last": bucket.zeros(), **inner_slots(self.compressor, bucket)}
        ...     def encode_decode(self, cx, tensor, state, *, keep_sent):
        ...         changed, state["last"] = tensor - state["last"], tensor.clone()
        ...         inner = inner_state(state, changed)
        ...         return (yield from self.compressor.encode_decode(cx, changed, inner, keep_sent=keep_sent))
        >>> round_trip(changes(identity()), [torch.tensor([1.0]), torch.tensor([3.0])])
        [tensor([1.]), tensor([2.])]
    """

    compressor: Compressor

    @property
    def without_memory(self) -> Compressor:
        return self.compressor.without_memory

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return self.compressor.message_bytes(numel, element_bytes)

    def layout_bytes(self, layout: Layout, element_bytes: int) -> int:
        return self.compressor.layout_bytes(layout, element_bytes)

    def facts_around(self, own: Slots, **stated: Any) -> CompressorFacts:
        """The facts of a memory in `own` slots, each as long as a bucket, around the inner compressor."""
        inner = self.compressor.facts
        return replace(
            inner,
            scope=widest("tensor", inner.scope),  # a memory has the bucket's entries alone
            linear=False,
            keeps_finite=False,
            slots={**own, **nested(_INNER, inner.slots)},
            **stated,
        )

    def __post_init__(self) -> None:
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


def inner_slots(compressor: Compressor, bucket: Bucket) -> dict[str, Tensor]:
    """The slots of a compressor, to stand among those of what codes with it.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import Bucket, Item, inner_slots
        >>> from relaxcomm.primitives import random_k
        >>> inner_slots(random_k(density=0.5), Bucket(0, [Item("weight", torch.ones(4))]))
        {'0.unit': tensor(0)}
    """
    return nested(_INNER, compressor.init(bucket))


def inner_state(state: State, lent: Tensor) -> State:
    """The slots that `inner_slots` has made, for a call that is lent memory to code.

    Args:
        state: of what codes with the compressor.
        lent: the tensor that the compressor is given.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import inner_state
        >>> dict(inner_state({"own": torch.ones(1), "0.unit": torch.tensor(0)}, torch.ones(4)))
        {'unit': tensor(0)}
    """
    return UnsharedState(NestedState(state, _INNER), lent)
