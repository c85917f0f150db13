"""What a compressor makes of tensors, without a run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from relaxcomm.checks.conduct import WatchedSlots
from relaxcomm.errors import UsageError
from relaxcomm.network.transport import Membership
from relaxcomm.primitives.compressors.decode import as_dense
from relaxcomm.roles import Coding, Compressor, Context, State
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.items import Item
from relaxcomm.tensors.layout import Layout
from relaxcomm.tensors.messages import Message, Sparse


def round_trip(compressor: Compressor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Encode and decode tensors that one worker sends one after the other, with the state kept in between.

    Args:
        compressor: what encodes.
        tensors: one a step, of one shape.

    Returns: what arrives in each step, shaped as what was sent.

    Raises: UsageError for tensors of several shapes or types.

    Example:
        >>> import torch
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.primitives import error_feedback, top_k
        >>> sent = [torch.tensor([1.0, 3.0]), torch.tensor([1.0, 0.0])]
        >>> round_trip(error_feedback(compressor=top_k(density=0.5)), sent)
        [tensor([0., 3.]), tensor([2., 0.])]
    """
    kinds = {(tuple(one.shape), one.dtype) for one in tensors}
    if len(kinds) > 1:
        listed = " and ".join(sorted(f"{dtype} {list(shape)}" for shape, dtype in kinds))
        raise UsageError(f"one worker sends tensors of one shape and type, got {listed}")
    if not kinds:
        return []
    tensors = [one.detach() for one in tensors]
    first = tensors[0].contiguous()  # as all are flattened
    state, layout = slots(compressor, first), bucket_of(first).layout
    return [
        encode_decode(compressor, tensor.flatten(), state, step, layout)[1].view_as(tensor)
        for step, tensor in enumerate(tensors)
    ]


def context(
    rank: int = 0, size: int = 1, step: int = 0, layout: Layout | None = None, *, start: int = 0
) -> Context:
    """What a primitive sees of a run that does nothing else, in a step from the first one of its rule on."""
    return Context(
        step=start + step,
        start=start,
        membership=Membership(rank, size),
        learning_rate=lambda bucket: 0.1,
        round=step,
        layout=layout,
    )


def slots(compressor: Compressor, tensor: Tensor, layout: Layout | None = None) -> WatchedSlots:
    """The compressor's first slots, for tensors that lie in a flat one as `layout` has it, or one alone."""
    return WatchedSlots(compressor.init(bucket_of(tensor, layout)), repr(compressor))


def encode_decode(
    compressor: Compressor,
    tensor: Tensor,
    state: State | None = None,
    step: int = 0,
    layout: Layout | None = None,
    *,
    rank: int = 0,
    size: int = 1,
) -> tuple[list[Message], Tensor, Tensor]:
    """All messages, what comes out when each comes back alone, and what it says that its own decode to.

    Slots are its first ones unless given.
    """
    cx = context(rank, size, step, layout)
    kept = slots(compressor, tensor, layout) if state is None else state
    coding = compressor.encode_decode(cx, tensor.clone(), kept, keep_sent=True)
    messages, result, sent = ended(coding)
    assert sent is not None, "what was sent was asked for"
    return messages, result, as_dense(sent, tensor)


def ended(coding: Coding) -> tuple[list[Message], Tensor, Tensor | Sparse | None]:
    """All messages of a coding to which each comes back alone, and what it returns."""
    messages, message = [], next(coding)
    while True:
        messages.append(message)
        try:
            message = coding.send([(1.0, message)])
        except StopIteration as stop:
            return messages, *stop.value


def bucket_of(tensor: Tensor, layout: Layout | None = None) -> Bucket:
    """A bucket of tensors that lie in a flat one as `layout` has it, or of one alone."""
    if layout is None:
        return Bucket(0, [Item("tensor", tensor)])
    parts = torch.split(tensor, [shape.numel() for shape in layout.shapes])
    named = zip(layout.names, parts, layout.shapes, strict=True)
    return Bucket(0, [Item(name, part.view(shape)) for name, part, shape in named])
