"""Exchanges in which each worker combines one part of the messages for all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from relaxcomm.fields.frozen import frozen
from relaxcomm.network.operations import AllGather, AllToAll
from relaxcomm.network.transport import Membership
from relaxcomm.primitives.compressors.decode import finish
from relaxcomm.primitives.compressors.error_feedback import error_feedback
from relaxcomm.primitives.exchanges.all_gather import all_gather
from relaxcomm.primitives.exchanges.message_rounds import received
from relaxcomm.primitives.exchanges.sharded_exchange import ShardedExchange
from relaxcomm.roles import Coding, Compressor, Context, ExchangeFacts, Exchanging, State
from relaxcomm.roles.carried import nested
from relaxcomm.tensors.buckets import Bucket
from relaxcomm.tensors.finiteness import is_known_finite, know_finite
from relaxcomm.tensors.messages import ALL_KINDS, Message
from relaxcomm.tensors.precision import wide
from relaxcomm.tensors.shards import (
    NestedState,
    shard_bucket,
    shard_layouts,
    shards_of,
)


@frozen
class scatter_gather(ShardedExchange):
    """Each worker decodes and averages one part of all messages, and sends the mean back, coded again.

    With x cut into N parts, worker m gets `C(x_n[m])` from every n, forms `a_m = (1/N) sum_n C(x_n[m])`, and
    all get `C(a_m)`. A rank sends `2 (N - 1) / N` of a message, as a ring does of summable ones; each
    part is coded on its own. All ranks decode the same bytes, so they end with the same result.

    Args:
        server_feedback: keep what the second coding leaves out and add it to the next mean (two-sided error
            feedback, with `error_feedback` around the rule's compressor). Without it the second coding
            has no memory, whatever the first one has.

    Example:
        >>> from relaxcomm import Rule, trajectory
        >>> from relaxcomm.primitives import gradients, quantize, scatter_gather
        >>> rule = Rule(payload=gradients(), compressor=quantize(bits=8), exchange=scatter_gather())
        >>> trajectory(rule, [[[0.0, 1.0], [2.0, 4.0]]])
        tensor([[[1.0000, 2.5000],
                 [1.0000, 2.5000]]])

    Reference: Gan et al., "BAGUA: Scaling up Distributed Learning with System Relaxations", VLDB 2022;
        Tang et al., "DoubleSqueeze", ICML 2019, for the second residual.
    """

    server_feedback: bool = False

    facts: ClassVar[ExchangeFacts] = replace(
        all_gather.facts, accepts=ALL_KINDS, operations=2, several_rounds=False, coding="parts and mean"
    )

    def keeps_residuals(self, compressor: Compressor) -> bool:
        return self.server_feedback or super().keeps_residuals(compressor)

    def takes_difference(self, compressor: Compressor, tensor: Tensor) -> bool:
        return compressor.makes_difference(tensor)

    def coding_slots(
        self, bucket: Bucket, compressor: Compressor, membership: Membership
    ) -> Mapping[str, Tensor]:
        num_shards = membership.world_size
        mine = shard_bucket(bucket, shard_layouts(bucket.layout, num_shards)[membership.rank])
        mean_slots = nested(num_shards, self._second(compressor).init(mine))
        return {**super().coding_slots(bucket, compressor, membership), **mean_slots}

    def run(self, cx: Context, tensor: Tensor, compressor: Compressor, state: State) -> Exchanging:
        rank, num_shards = cx.membership.rank, cx.membership.world_size
        kept = wide(tensor.dtype)
        result = tensor if tensor.dtype == kept else torch.empty_like(tensor, dtype=kept)
        shards = shards_of(tensor, num_shards)
        into = [result[start : start + shard.numel()] for start, shard in shards]
        known = [
            _known_of(cx.part(start, shard.numel()).at(out=out), shard, compressor)
            for (start, shard), out in zip(shards, into, strict=True)
        ]
        codings = [
            compressor.encode_decode(known[index], shard, NestedState(state, index), keep_sent=False)
            for index, (_, shard) in enumerate(shards)
        ]
        messages = [next(coding) for coding in codings]
        came = yield from scatter(messages)
        parts = [(1 / num_shards, messages[rank].unpack(row)) for row in came]
        mean, _ = finish(codings[rank], parts)
        again = known[rank].part(0, mean.numel())  # a place of its own: its draws are not those of the first
        again = again.at(difference=None, out=into[rank])
        if not self.server_feedback:  # which keeps what a shorter type cannot hold
            mean = mean.to(tensor.dtype)
        mean_coding = self._second(compressor).encode_decode(
            again, mean, NestedState(state, num_shards), keep_sent=False
        )
        message = next(mean_coding)
        rows = yield from gather(message, came.shape[1])
        # The coders of the other parts read the means of those, and only now keep what they left out.
        codings[rank], messages[rank] = mean_coding, message
        if _decode(codings, [one.unpack(row) for one, row in zip(messages, rows, strict=True)], into):
            know_finite(result)
        return result

    def _second(self, compressor: Compressor) -> Compressor:
        """What codes the means."""
        memoryless = compressor.without_memory
        return error_feedback(compressor=memoryless) if self.server_feedback else memoryless


def _known_of(cx: Context, shard: Tensor, compressor: Compressor) -> Context:
    """What is known of a shard; a difference is made there, if it is too short for who takes the whole."""
    if cx.difference is None or compressor.makes_difference(shard):
        return cx
    cx.difference.write_to(shard)
    return cx.at(difference=None)


def _decode(codings: Iterable[Coding], means: Iterable[Message], into: Iterable[Tensor]) -> bool:
    """Decode the means into their places; whether all are known to be finite."""
    are_finite = True
    for coding, message, out in zip(codings, means, into, strict=True):
        mean, _ = finish(coding, ((1.0, message),))
        are_finite = are_finite and is_known_finite(mean)
        if mean.data_ptr() != out.data_ptr():
            out.copy_(mean)
    return are_finite


def scatter(messages: Sequence[Message]) -> Exchanging:
    """Send each rank the message of its part; those of smaller parts are filled up with zeros."""
    return received(AllToAll(pad_sequence([message.pack() for message in messages], batch_first=True)))


def gather(message: Message, width: int) -> Exchanging:
    """Send all ranks a message, filled up to a width; those of all."""
    packed = message.pack()
    return received(AllGather(torch.cat([packed, packed.new_zeros(width - packed.numel())])))
