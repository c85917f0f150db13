"""Codings of the shards of a tensor, each on its own: at once where that saves launches, or one by one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from relaxcomm.primitives.compressors.decode import finish
from relaxcomm.primitives.compressors.error_feedback import error_feedback
from relaxcomm.primitives.compressors.fused_feedback import QuantizedFeedback
from relaxcomm.primitives.compressors.weighted_sum import sum_quantized
from relaxcomm.roles import Coding, Compressor, Context, Parts, State
from relaxcomm.tensors.finiteness import is_known_finite, know_finite
from relaxcomm.tensors.messages import Message, Quantized
from relaxcomm.tensors.precision import wide
from relaxcomm.tensors.shards import JoinedState, NestedState, shards_of


class OneByOne:
    """A coding for each shard.

    Attributes:
        known: what is known of each.
        messages: of each.
    """

    def __init__(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> None:
        shards, kept = shards_of(tensor, cx.membership.world_size), wide(tensor.dtype)
        self._result = tensor if tensor.dtype == kept else torch.empty_like(tensor, dtype=kept)
        self._into = [self._result[start : start + shard.numel()] for start, shard in shards]
        self.known = [
            _known_of(cx.part(start, shard.numel()).at(out=out), shard, compressor)
            for (start, shard), out in zip(shards, self._into, strict=True)
        ]
        self._codings = [
            compressor.encode_decode(self.known[index], shard, NestedState(state, index), keep_sent=False)
            for index, (_, shard) in enumerate(shards)
        ]
        self.messages: Sequence[Message] = [next(coding) for coding in self._codings]

    def sum(self, index: int, parts: Parts) -> Tensor:
        """What the ranks' messages of one shard add up to."""
        return finish(self._codings[index], parts)[0]

    def result(self, sums: Sequence[Message], index: int, coding: Coding) -> Tensor:
        """What messages of such sums decode to; the coders of others only now keep what they left out.

        Args:
            sums: of each shard.
            index: of the shard for which `sum` was asked.
            coding: of that sum.
        """
        self._codings[index], are_finite = coding, True
        for one, message, out in zip(self._codings, sums, self._into, strict=True):
            shard, _ = finish(one, ((1.0, message),))
            are_finite = are_finite and is_known_finite(shard)
            if shard.data_ptr() != out.data_ptr():
                out.copy_(shard)
        if are_finite:
            know_finite(self._result)
        return self._result

    def decoded(self, messages: Sequence[Message]) -> Tensor:
        """What quantised messages, one of each shard, decode to, without their coders."""
        pairs = zip(messages, self._into, strict=True)
        return torch.cat([sum_quantized(((1.0, message),), like) for message, like in pairs])


class AtOnce:
    """One coding of all shards, in as many launches as of one."""

    def __init__(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> None:
        self._shards = shards_of(tensor, cx.membership.world_size)
        self.known = [cx.part(start, shard.numel()) for start, shard in self._shards]
        slots, size = JoinedState(state, len(self._shards)), self._shards[0][1].numel()
        self._coding = compressor.encode_decode(
            cx.at(shard_size=size, out=None), tensor, slots, keep_sent=False
        )
        message = next(self._coding)
        assert isinstance(message, Quantized), f"expected a quantised message, got {message!r}"
        self._tensor, self._message, self.messages = tensor, message, message.shards()

    def sum(self, index: int, parts: Parts) -> Tensor:
        return sum_quantized(parts, self._shards[index][1])

    def result(self, sums: Sequence[Message], index: int, coding: Coding) -> Tensor:
        finish(coding, ((1.0, sums[index]),))
        return finish(self._coding, ((1.0, self._message.of_shards(sums)),))[0]

    def decoded(self, messages: Sequence[Message]) -> Tensor:
        return sum_quantized(((1.0, self._message.of_shards(messages)),), self._tensor)


def shard_codings(cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> OneByOne | AtOnce:
    """The codings of the ranks' shards of a tensor: at once on a GPU, by coders whose kernels do that."""
    coder = compressor.compressor if isinstance(compressor, error_feedback) else compressor
    has_all = shards_of(tensor, cx.membership.world_size)[-1][1].numel() > 0
    at_once = has_all and isinstance(coder, QuantizedFeedback) and coder.takes_shards(tensor)
    return (AtOnce if at_once else OneByOne)(cx, tensor, compressor, state)


def _known_of(cx: Context, shard: Tensor, compressor: Compressor) -> Context:
    """What is known of a shard; a difference is made there, if it is too short for who takes the whole."""
    if cx.difference is None or compressor.makes_difference(shard):
        return cx
    cx.difference.write_to(shard)
    return cx.at(difference=None)
