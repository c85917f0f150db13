"""One compressor at first, another later."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from torch import Tensor

from relaxcomm.errors import CompositionError
from relaxcomm.fields.frozen import Steps, frozen
from relaxcomm.roles import Coding, Compressor, CompressorFacts, Context, State
from relaxcomm.roles.carried import nested
from relaxcomm.roles.compressor import widest
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.layout import Layout
from relaxcomm.tensors.shards import NestedState


@frozen
class switch(Compressor):
    """Code with `first` in the first `steps` steps of the rule, and with `then` in all others.

    Args:
        first: the compressor at the beginning, such as `identity()`.
        then: the compressor later on.
        steps: optimizer steps, counted from the first in which the rule is active.

    Raises: CompositionError for compressors that send different numbers of messages.

    Example:
        >>> import torch
        >>> from relaxcomm import round_trip
        >>> from relaxcomm.primitives import cast, identity, switch
        >>> compressor = switch(first=identity(), then=cast(dtype="bfloat16"), steps=100)
        >>> arrived = round_trip(compressor, [torch.tensor([1.001])] * 102)
        >>> arrived[98:]
        [tensor([1.0010]), tensor([1.0010]), tensor([1.]), tensor([1.])]
    """

    first: Compressor
    then: Compressor
    steps: Steps

    @cached_property
    def facts(self) -> CompressorFacts:
        first, then = self.first.facts, self.then.facts
        keeps = first.memory != "none" or then.memory != "none"
        return CompressorFacts(
            kinds=first.kinds | then.kinds,
            rounds=first.rounds,
            scope=widest(first.scope, then.scope),
            linear=first.linear and then.linear,
            unbiased=first.unbiased and then.unbiased,
            clip=min(first.clip, then.clip),
            max_norm=min(first.max_norm, then.max_norm),
            memory="leaky" if keeps else "none",  # what `first` has kept is never sent
            follows_results=first.follows_results or then.follows_results,
            follows_clock=True,
            keeps_finite=first.keeps_finite and then.keeps_finite,
            slots=nested(0, first.slots) | nested(1, then.slots),
            most_entries=min(first.most_entries, then.most_entries),
        )

    def __post_init__(self) -> None:
        if self.first.facts.rounds != self.then.facts.rounds:
            raise CompositionError(
                f"switch takes compressors of equal rounds, got {self.first!r} of {self.first.facts.rounds} "
                f"and {self.then!r} of {self.then.facts.rounds}; give two rules disjoint active ranges "
                "instead"
            )

    @property
    def without_memory(self) -> Compressor:
        return switch(first=self.first.without_memory, then=self.then.without_memory, steps=self.steps)

    def check_optimizer(self, groups: list[dict[str, object]]) -> None:
        self.first.check_optimizer(groups)
        self.then.check_optimizer(groups)

    @property
    def phases(self) -> tuple[tuple[int, Compressor], ...]:
        before = tuple((start, one) for start, one in self.first.phases if start < self.steps)
        after = [(start, one) for start, one in self.then.phases if start > self.steps]
        begun = [one for start, one in self.then.phases if start <= self.steps]
        return (*before, (self.steps, begun[-1]), *after)

    def init(self, bucket: Bucket) -> Mapping[str, Tensor]:
        return nested(0, self.first.init(bucket)) | nested(1, self.then.init(bucket))

    def encode_decode(self, cx: Context, tensor: Tensor, state: State, *, keep_sent: bool) -> Coding:
        index = int(cx.step - cx.start >= self.steps)
        now = (self.first, self.then)[index]
        return (yield from now.encode_decode(cx, tensor, NestedState(state, index), keep_sent=keep_sent))

    def message_bytes(self, numel: int, element_bytes: int) -> int:
        """The bytes of the larger of the two messages."""
        return max(one.message_bytes(numel, element_bytes) for one in (self.first, self.then))

    def layout_bytes(self, layout: Layout, element_bytes: int) -> int:
        return max(one.layout_bytes(layout, element_bytes) for one in (self.first, self.then))
