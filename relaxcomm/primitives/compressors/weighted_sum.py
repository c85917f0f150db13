"""Weighted sums of messages."""

from __future__ import annotations

from torch import Tensor

from relaxcomm.roles import Parts
from relaxcomm.tensors import buffer_pool
from relaxcomm.tensors.messages import Dense, Message, Quantized, Sparse
from relaxcomm.tensors.precision import wide


def sum_dense(parts: Parts) -> Tensor:
    """The weighted sum of dense messages, at least float32; one part of weight 1 is returned as it is."""
    (weight, first), *others = parts
    if not others and weight == 1.0:
        return _dense(first)
    total = _dense(first).to(wide(_dense(first).dtype)) * weight
    for weight, message in others:
        total.add_(_dense(message), alpha=weight)
    return total


def _dense(message: Message) -> Tensor:
    assert isinstance(message, Dense), f"expected a dense message, got {message!r}"
    return message.tensor


def sum_sparse(parts: Parts, like: Tensor) -> Tensor:
    """The weighted sum of sparse messages as a dense tensor, at least float32."""
    if not parts:
        return buffer_pool.zeros_like(like, wide(like.dtype))
    total, cut = buffer_pool.empty_like(like, wide(like.dtype)), []
    for _, message in parts:
        assert isinstance(message, Sparse), f"expected a sparse message, got {message!r}"
        cut.append(message.ranges(like))
    # One range of all messages at a time, while it is in the cache.
    for together in zip(*cut, strict=True):
        together[0].of(total).zero_()
        for (weight, _), one in zip(parts, together, strict=True):
            one.add_to(total, weight)
    return total


def sum_quantized(parts: Parts, like: Tensor) -> Tensor:
    """The weighted sum of quantised messages as a tensor like `like`, at least float32."""
    total = buffer_pool.zeros_like(like, wide(like.dtype))
    for weight, message in parts:
        assert isinstance(message, Quantized), f"expected a quantised message, got {message!r}"
        message.add_to(total, weight)
    return total
