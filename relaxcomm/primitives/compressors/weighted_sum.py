"""Weighted sums of messages."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from relaxcomm.kernels import block_sums, level_sums
from relaxcomm.kernels.device_numbers import device_numbers
from relaxcomm.kernels.dispatch import is_for_kernels
from relaxcomm.kernels.index_sums import add_range
from relaxcomm.kernels.message_sums import add_entries, stacked, sum_levels
from relaxcomm.roles import Parts
from relaxcomm.tensors import buffer_pool
from relaxcomm.tensors.bit_packing import unpack_places
from relaxcomm.tensors.finiteness import know_finite
from relaxcomm.tensors.messages import (
    BlockSparse,
    Coefficients,
    Dense,
    Message,
    Quantized,
    Signs,
    Sparse,
    block_starts,
    largest_block,
)
from relaxcomm.tensors.precision import wide

_LARGEST = torch.finfo(torch.float32).max / 2
_LOOKED_AT = 1 << 16  # entries of a sum, in the time in which a message's levels are asked
_TOGETHER = (Sparse, BlockSparse, Coefficients)
_EVEN = (Quantized, Signs)  # others may have levels of their own


def sum_dense(parts: Parts, out: Tensor | None = None) -> Tensor:
    """The weighted sum of dense messages, at least float32; one part of weight 1 is returned as it is.

    Args:
        parts: messages with their weights.
        out: memory for it, which is used if it has the shape and the type; the first message may lie there.
    """
    (weight, first), *others = parts
    if not others and weight == 1.0:
        return _dense(first)
    values = _dense(first).to(wide(_dense(first).dtype))
    if out is not None:
        out = buffer_pool.out_or_empty(values, values.dtype, out, *(_dense(message) for _, message in others))
    total = torch.mul(values, weight, out=out)
    for weight, message in others:
        total.add_(_dense(message), alpha=weight)
    return total


def _dense(message: Message) -> Tensor:
    assert isinstance(message, Dense), f"expected a dense message, got {message!r}"
    return message.tensor


def sum_sparse(parts: Parts, like: Tensor, out: Tensor | None = None) -> Tensor:
    """The weighted sum of sparse messages as a dense tensor, at least float32.

    Args:
        parts: messages with their weights.
        like: a tensor of the shape of the sum.
        out: memory for it, which is used if it has the shape and the type.
    """
    total = buffer_pool.out_or_empty(like, wide(like.dtype), out)
    if not parts:
        return total.zero_()
    if is_for_kernels(like) and all(type(message) in _TOGETHER for _, message in parts):
        _add_together(parts, total.zero_())
        return total
    if block_sums.takes(total, [message for _, message in parts]):
        block_sums.sum_blocks(total, parts)
    else:
        _add_in_ranges(parts, total)
    if _stays_finite(parts, total):
        know_finite(total)
    return total


def _add_in_ranges(parts: Parts, total: Tensor) -> None:
    """Write the sum, one range of all messages at a time, while it is in the cache."""
    cut = []
    for _, message in parts:
        assert isinstance(message, Sparse), f"expected a sparse message, got {message!r}"
        cut.append(message.ranges(total))
    for together in zip(*cut, strict=True):
        together[0].of(total).zero_()
        for (weight, _), one in zip(parts, together, strict=True):
            add_range(total, one, weight)


def _stays_finite(parts: Parts, total: Tensor) -> bool:
    """Whether the sum must be finite; False where to ask is no less work than to look at it.

    Where the sum of squares is finite, values are below the root of the largest number, and no sum of as many
    as memory holds reaches that.
    """
    values = [message.values for _, message in parts if isinstance(message, Sparse)]
    if total.device.type != "cpu" or sum(one.numel() for one in values) >= total.numel():
        return False
    are_small = max(abs(weight) for weight, _ in parts) <= 1
    return are_small and all(math.isfinite(torch.dot(one, one).item()) for one in values)


def add_sparse(total: Tensor, message: Sparse, weight: float) -> None:
    """Add what a message decodes to, times a weight, to a tensor."""
    if block_sums.takes(total, [message]):
        block_sums.add_blocks(total, message, weight)
        return
    for one in message.ranges(total):
        add_range(total, one, weight)


def sum_quantized(parts: Parts, like: Tensor, out: Tensor | None = None) -> Tensor:
    """The weighted sum of quantised messages, with arguments and result as of `sum_sparse`."""
    are_even = all(type(message) in _EVEN for _, message in parts)
    if is_for_kernels(like) and parts and are_even:
        return _quantized_together(parts, like)
    total = buffer_pool.out_or_empty(like, wide(like.dtype), out)
    if are_even and level_sums.takes(total, [message for _, message in parts]):
        level_sums.sum_levels_of_blocks(total, parts)
    else:
        _add_levels(parts, total)
    if are_even and _levels_stay_finite(parts, total):
        know_finite(total)
    return total


def _add_levels(parts: Parts, total: Tensor) -> None:
    """Write the sum, one message after the other."""
    is_written = False
    for weight, message in parts:
        assert isinstance(message, Quantized), f"expected a quantised message, got {message!r}"
        if not is_written and weight == 1 and message.lows.dtype == total.dtype and message.lows.numel():
            message.write_to(total)
        else:
            message.add_to(total if is_written else total.zero_(), weight)
        is_written = True
    if not is_written:
        total.zero_()


def _levels_stay_finite(parts: Parts, total: Tensor) -> bool:
    """Whether the sum must be finite: that of the largest sizes of all messages is, with room to round.

    False where to ask is no less work than to look at it.
    """
    if total.device.type != "cpu" or total.numel() < _LOOKED_AT * len(parts):
        return False
    largest = 0.0
    for weight, message in parts:
        if not isinstance(message, Quantized) or message.steps.dtype != torch.float32:
            return False
        if message.steps.numel():
            sizes = message.steps.abs().mul_(message.num_codes)
            sizes = sizes.add_(message.lows.abs()) if message.lows.numel() else sizes
            largest += abs(weight) * sizes.max().item()
    return largest < _LARGEST


def _add_together(parts: Parts, total: Tensor) -> None:
    """Add messages, in a number of launches that does not depend on how many they are."""
    messages = [message for _, message in parts if isinstance(message, Sparse)]
    values, indices, counts = (
        stacked([getattr(message, name) for message in messages]) for name in ("values", "indices", "count")
    )
    first = messages[0]
    if isinstance(first, BlockSparse):
        places = unpack_places(indices, values.shape[1], largest_block(first.blocks))
        indices = places + block_starts(first.blocks, places.device)
    add_entries(total, values, indices, counts, _weights(parts, total))


def _quantized_together(parts: Parts, like: Tensor) -> Tensor:
    """The weighted sum of quantised messages, in kernels for a GPU."""
    messages = [message for _, message in parts if isinstance(message, Quantized)]
    assert len(messages) == len(parts), f"expected quantised messages, got {parts!r}"
    codes, steps, lows = (
        stacked([getattr(message, name) for message in messages]) for name in ("codes", "steps", "lows")
    )
    first = messages[0]
    has_lows = first.lows.numel() > 0
    weights = _weights(parts, like)
    return sum_levels(codes, steps, lows if has_lows else None, weights, first.segments, first.num_codes)


def _weights(parts: Parts, like: Tensor) -> Tensor:
    return device_numbers(tuple(weight for weight, _ in parts), wide(like.dtype), like.device)
