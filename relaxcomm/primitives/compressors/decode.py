"""Messages decoded outside the exchange that they were made for."""

from __future__ import annotations

import torch
from torch import Tensor

from relaxcomm.primitives.compressors.weighted_sum import sum_quantized, sum_sparse
from relaxcomm.roles import Coding, Compressor, Context, Parts, State
from relaxcomm.tensors.messages import Message, Quantized, Sparse


def finish(coding: Coding, parts: Parts) -> tuple[Tensor, Tensor | Sparse | None]:
    """The result, and what was sent if it was asked for, of a coding that has yielded its only message.

    Args:
        coding: what `Compressor.encode_decode` has returned, after its message was taken with `next`.
        parts: the messages that are to be combined, each with its weight.

    Example:
        >>> import torch
        >>> from relaxcomm.plugin import Context, Membership, finish
        >>> from relaxcomm.primitives import cast
        >>> cx = Context(0, 0, Membership(0, 1), lambda bucket: 0.1)
        >>> coding = cast(dtype="float16").encode_decode(cx, torch.ones(2), {}, keep_sent=False)
        >>> message = next(coding)
        >>> finish(coding, [(0.25, message), (0.5, message)])[0]
        tensor([0.7500, 0.7500])
    """
    try:
        coding.send(parts)
    except StopIteration as stop:
        result: tuple[Tensor, Tensor | Sparse | None] = stop.value
        return result
    raise AssertionError("only compressors of one message can be read outside their exchange")


def read(compressor: Compressor, cx: Context, like: Tensor, state: State, message: Message) -> Tensor:
    """What a message of a compressor without residual decodes to, a tensor like `like`."""
    if isinstance(message, Quantized):  # it says so itself, without a message being made to ask it
        return sum_quantized(((1.0, message),), like)
    spare = {slot: tensor.clone() for slot, tensor in state.items()}  # zeros are coded for the decoder alone
    coding = compressor.encode_decode(cx.at(out=None), torch.zeros_like(like), spare, keep_sent=False)
    next(coding)
    return finish(coding, ((1.0, message),))[0]


def as_dense(sent: Tensor | Sparse, like: Tensor) -> Tensor:
    """What was sent as a tensor like `like`."""
    return sent if isinstance(sent, Tensor) else sum_sparse(((1.0, sent),), like)
