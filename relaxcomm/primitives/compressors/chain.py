"""Compressors after one another: each codes the values of the message before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from relaxcomm.errors import CompositionError
from relaxcomm.fields.frozen import frozen
from relaxcomm.primitives.compressors.decode import as_dense, finish, read
from relaxcomm.roles import Coding, Compressor, CompressorFacts, Context, State
from relaxcomm.roles.carried import nested
from relaxcomm.roles.compressor import Scope, widest
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.finiteness import finite_flags
from relaxcomm.tensors.layout import Layout, one_tensor
from relaxcomm.tensors.messages import (
    DENSE,
    MAXIMUM,
    SHARED_SUPPORT,
    SPARSE,
    BlockSparse,
    Dense,
    Message,
    SharedSupport,
    Sparse,
    SparseOf,
)
from relaxcomm.tensors.shards import NestedState, shard_bucket
from relaxcomm.tensors.unshared import UnsharedState

_FIRST, _REST = 0, 1


@frozen
class chain(Compressor):
    """Each compressor codes the values of the message that the one before it has made.

    The first may choose entries, the next shorten their numbers: with v the values of `C_1(x)`, what is sent
    is `C_2(v)`. Where a part is biased, `error_feedback` goes around the whole chain and corrects them all.

    Args:
        compressors: two or more, the one that sees the tensor first; each of one message a tensor.

    Raises: CompositionError for compressors that keep a residual or send several messages.

    Example:
        >>> import torch
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.primitives import cast, chain, top_k
        >>> compressor = chain(compressors=(top_k(density=0.01), cast(dtype="float16")))
        >>> (arrived,) = round_trip(compressor, [torch.arange(100.0) / 3])
        >>> arrived[98:], compressor.message_bytes(numel=100, element_bytes=4)
        (tensor([ 0., 33.]), 10)
    """

    compressors: Annotated[tuple[Compressor, ...], Field(min_length=2)]

    @cached_property
    def facts(self) -> CompressorFacts:
        first, rest = self._first.facts, self._rest.facts
        # Values of chosen entries lie in no tensor, so what looks at a tensor looks at all of them.
        inner: Scope = "bucket" if rest.scope == "tensor" and first.scope != "entry" else rest.scope
        return CompressorFacts(
            kinds=frozenset(_kind(a, b) for a in first.kinds for b in rest.kinds),
            rounds=1,
            scope=widest(first.scope, inner),
            linear=first.linear and rest.linear,
            unbiased=first.unbiased and rest.unbiased,
            clip=min(first.clip, rest.clip),
            max_norm=min(first.max_norm, rest.max_norm),
            memory="none",
            follows_results=first.follows_results or rest.follows_results,
            follows_clock=first.follows_clock or rest.follows_clock,
            keeps_finite=False,
            slots=nested(_FIRST, first.slots) | nested(_REST, rest.slots),
            most_entries=min(first.most_entries, rest.most_entries),
        )

    def __post_init__(self) -> None:
        for one in self.compressors[:-1]:
            if one.values(1, 1) is None:
                raise CompositionError(
                    f"chain cannot code the values of {one!r} further, as its values() counts none; let it "
                    "come last, or write the parts of a chain into one list"
                )
        for one in self.compressors:
            if one.facts.memory != "none" or one.facts.rounds != 1 or MAXIMUM in one.facts.kinds:
                raise CompositionError(
                    "chain takes compressors of one message that keep no residual and ask for no maximum, "
                    f"got {one!r}; put error_feedback around the whole chain"
                )

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        num_values, _ = self._values(bucket.layout, bucket.dtype.itemsize)
        rest = self._rest.init(shard_bucket(bucket, one_tensor(num_values)))
        return nested(_FIRST, self._first.init(bucket)) | nested(_REST, rest)

    def makes_sum(self, tensor: Tensor) -> bool:
        return self._first.makes_sum(tensor)

    def contraction(self, numel: int) -> float | None:
        num_values, _ = self._values(one_tensor(numel), 4)
        first, rest = self._first.contraction(numel), self._rest.contraction(num_values)
        if first is None or rest is None:
            return None
        # ||C_2 v - x|| <= ||C_2 v - v|| + ||v - x||, with ||v|| <= ||x|| + ||v - x||.
        return (math.sqrt(rest) * (1 + math.sqrt(first)) + math.sqrt(first)) ** 2

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        return self.layout_bytes(one_tensor(numel), element_bytes)

    def layout_bytes(self, layout: Layout, element_bytes: int) -> int:
        num_values, value_bytes = self._values(layout, element_bytes)
        places_bytes = self._first.layout_bytes(layout, element_bytes) - num_values * value_bytes
        inner = layout if self._first.facts.scope == "entry" else one_tensor(num_values)
        return places_bytes + self._rest.layout_bytes(inner, value_bytes)

    def encode_decode(self, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        outer = self._first.encode_decode(cx, tensor, NestedState(state, _FIRST), keep_sent=False)
        message = next(outer)
        several = _sparse if isinstance(message, Sparse) else _whole
        reading = _Reading(cx.at(out=None, terms=None), self._first, self._rest, state, tensor)
        return (yield from several(reading, outer, message, keep_sent))

    def _values(self, layout: Layout, element_bytes: int) -> tuple[int, int]:
        """How many values the first one's message has, and the bytes of each."""
        values = self._first.layout_values(layout, element_bytes)
        assert values is not None, "those without are refused when a chain is built"
        return values

    @property
    def _first(self) -> Compressor:
        return self.compressors[0]

    @property
    def _rest(self) -> Compressor:
        return self.compressors[1] if len(self.compressors) == 2 else chain(compressors=self.compressors[1:])


class _Reading:
    """What both ways to code a message's values need: the two compressors with their slots."""

    def __init__(
        self, cx: Context, first: Compressor, rest: Compressor, state: State, tensor: Tensor
    ) -> None:
        self._cx, self._first, self._rest, self._tensor = cx, first, rest, tensor
        self._first_state, self._rest_state = NestedState(state, _FIRST), NestedState(state, _REST)

    @property
    def adds_up(self) -> bool:
        """Whether the first compressor decodes a sum of messages as the sum of what each decodes to."""
        return self._first.facts.linear

    def encode_decode(self, values: Tensor, keep_sent: bool) -> Coding:
        state = UnsharedState(self._rest_state, values)
        return self._rest.encode_decode(self._inner(values), values, state, keep_sent=keep_sent)

    def _inner(self, values: Tensor) -> Context:
        """Chosen entries are values of no tensor in particular."""
        return self._cx if self._first.facts.scope == "entry" else self._cx.at(layout=None)

    def values(self, message: Message, like: Tensor) -> Tensor:
        """The values that one worker's message decodes to."""
        return read(self._rest, self._inner(like), like, self._rest_state, message)

    def tensor(self, message: Message) -> Tensor:
        """What a message of the first compressor decodes to."""
        return read(self._first, self._cx, self._tensor, self._first_state, message)


def _sparse(reading: _Reading, outer: Coding, message: Message, keep_sent: bool) -> Coding:
    """Workers' entries differ, so each worker's values are decoded before they are added up."""
    assert isinstance(message, Sparse)
    message = _all_used(message)
    coding = reading.encode_decode(message.values, keep_sent)
    parts = yield SparseOf(next(coding), message.indices, message.count)
    decoded, mine = [], None
    for weight, part in parts:
        assert isinstance(part, SparseOf)
        values = reading.values(part.values, message.values)
        decoded.append((weight, replace(message, values=values, indices=part.indices, count=part.count)))
        mine = part.values
    assert mine is not None, "an exchange sent back no part"
    _, sent = finish(coding, ((1.0, mine),))
    result, _ = finish(outer, decoded)
    if sent is None:
        return result, None
    sent = replace(message, values=as_dense(sent, message.values))
    return result, sent if sent.is_direct else reading.tensor(sent)


def _all_used(message: Sparse) -> Sparse:
    """The message; where its values are not finite all are used, whichever of them the next coder takes."""
    values, indices, count = message.values, message.indices, message.count
    if isinstance(message, BlockSparse):
        return message
    used = torch.arange(values.numel(), device=values.device) < count
    count = torch.where(finite_flags([values]), count, values.numel()).to(count.dtype)
    return replace(message, indices=torch.where(used, indices, 0), count=count)


def _whole(reading: _Reading, outer: Coding, message: Message, keep_sent: bool) -> Coding:
    """All workers send the same entries, so their values may be added up first, unless each is clipped."""
    assert isinstance(message, Dense), f"the values of {message!r} cannot be coded further"
    coding = reading.encode_decode(message.tensor, keep_sent)
    inner = next(coding)
    if message.kind == SHARED_SUPPORT and inner.kind == DENSE:
        assert isinstance(inner, Dense)
        inner = SharedSupport(inner.tensor)
    parts = yield inner
    values, sent = finish(coding, parts)
    decoded = [(1.0, Dense(values))]
    if not reading.adds_up:
        decoded = [(weight, Dense(reading.values(part, message.tensor))) for weight, part in parts]
    result, _ = finish(outer, decoded)
    return result, None if sent is None else reading.tensor(Dense(as_dense(sent, message.tensor)))


def _kind(first: str, rest: str) -> str:
    """The kind of a message of kind `first` whose values are a message of kind `rest`."""
    return first if first == SPARSE or rest == DENSE else rest
